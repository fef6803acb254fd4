/* 2,000 functions of 1 KiB, of which the program calls 100, each with a constant and a variable of 512 bytes.
 *
 * Each piece has a section of its own, so that a linker can place it. x86-64 only, as neap order trace is.
 */
__asm__(
    ".altmacro\n"
    ".macro piece number\n"
    ".section .text.function_\\number, \"ax\", @progbits\n"
    ".balign 16\n"
    ".type function_\\number, @function\n"
    "function_\\number:\n"
    "movl constant_\\number(%rip), %eax\n"
    "addl %eax, variable_\\number(%rip)\n"
    "ret\n"
    ".skip 1000, 0xcc\n"
    ".size function_\\number, . - function_\\number\n"
    ".section .rodata.constant_\\number, \"a\", @progbits\n"
    ".balign 32\n"
    ".type constant_\\number, @object\n"
    ".size constant_\\number, 512\n"
    "constant_\\number:\n"
    ".fill 128, 4, 1\n"
    ".section .data.variable_\\number, \"aw\", @progbits\n"
    ".balign 32\n"
    ".type variable_\\number, @object\n"
    ".size variable_\\number, 512\n"
    "variable_\\number:\n"
    ".fill 128, 4, 1\n"
    ".endm\n"
    ".macro use number\n"
    "call function_\\number\n"
    ".endm\n"
    ".set i, 0\n"
    ".rept 2000\n"
    "piece %i\n"
    ".set i, i + 1\n"
    ".endr\n"
    ".text\n"
    ".globl start\n"
    ".type start, @function\n"
    "start:\n"
    /* Each twentieth, in another order than they lie in. */
    ".set i, 7\n"
    ".rept 100\n"
    "use %i\n"
    ".set i, (i + 740) % 2000\n"
    ".endr\n"
    "ret\n"
    ".size start, . - start\n");

void start(void);

int main(void) {
  start();
  return 0;
}
