//! libneap.so: the malloc surface of C and C++ on the neap allocator.
#![no_std]

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}
