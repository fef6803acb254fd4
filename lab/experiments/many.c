/* 50,000 functions, of which the program calls 5,000. x86-64 only, as neap order trace is. */
__asm__(
    ".altmacro\n"
    ".text\n"
    ".macro each number\n"
    ".globl f\\number\n"
    ".type f\\number, @function\n"
    ".balign 16\n"
    "f\\number:\n"
    "nop\n"
    "ret\n"
    ".size f\\number, . - f\\number\n"
    ".endm\n"
    ".macro entry number\n"
    ".quad f\\number\n"
    ".endm\n"
    ".set i, 0\n"
    ".rept 50000\n"
    "each %i\n"
    ".set i, i + 1\n"
    ".endr\n"
    ".section .data.rel.ro, \"aw\"\n"
    ".balign 8\n"
    "table:\n"
    ".set i, 0\n"
    ".rept 5000\n"
    "entry %i\n"
    ".set i, i + 10\n"
    ".endr\n"
    ".text\n");

extern void (*const table[5000])(void) __attribute__((visibility("hidden")));

int main(void) {
  for (int i = 0; i < 5000; i++) table[i]();
  return 0;
}
