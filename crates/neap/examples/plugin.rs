//! A plugin: a library that a program opens with dlopen, and that has an allocator of its own. `cargo build --example
//! plugin` makes `libplugin.so`. neap keeps it loaded after dlclose, because threads of the program may have blocks in
//! their caches, and free memory waits to be given back.

#[global_allocator]
static ALLOCATOR: neap::Neap = neap::Neap;

/// One task of the program's: takes blocks, frees them, and returns a block of 1,000 bytes, which stays.
#[unsafe(no_mangle)]
pub extern "C" fn task(count: usize) -> *const u8 {
    let blocks: Vec<Vec<u8>> = (0..count).map(|i| vec![1; 100 + i % 5000]).collect();
    let large = vec![1u8; 8 << 20];
    let sum = blocks.iter().map(|block| usize::from(block[0])).sum::<usize>() + usize::from(large[count]);
    vec![sum as u8; 1000].leak().as_ptr()
}
