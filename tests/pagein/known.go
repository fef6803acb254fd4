// Faults at a known function of Go.
package main

//go:noinline
func touch(memory []byte) {
	for i := 0; i < len(memory); i += 4096 {
		memory[i] = 1
	}
}

func main() {
	touch(make([]byte, 16<<20))
}
