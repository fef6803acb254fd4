// Faults at known functions and variables with mangled names.
#define APART __attribute__((noinline, aligned(65536)))

namespace outer {

template <int N>
struct Page {
    alignas(4096) static volatile char data[4096];
};
template <int N>
volatile char Page<N>::data[4096] = {1};

template <int N>
APART void touch() {
    Page<N>::data[5] = 2;
}

}  // namespace outer

int main() {
    outer::touch<1>();
    outer::touch<2>();
    outer::touch<3>();
    outer::touch<4>();
    return 0;
}
