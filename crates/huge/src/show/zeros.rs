//! Which parts of huge pages are zero: memory that the program would not have in OS pages.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes that are read at once.
const STEP: u64 = 2 << 20;

/// Reads the memory of a process.
pub struct Zeros {
    memory: File,
    os_page: usize,
    /// Bytes that may still be read.
    left: u64,
    buffer: Vec<u8>,
}

impl Zeros {
    /// For that process; reads at most `limit` bytes.
    pub fn open(pid: u32, os_page: u64, limit: u64) -> io::Result<Zeros> {
        let memory = File::open(format!("/proc/{pid}/mem"))?;
        Ok(Zeros { memory, os_page: os_page as usize, left: limit, buffer: vec![0; STEP as usize] })
    }

    /// The bytes of a range that were read, and the bytes in OS pages that are all zero.
    pub fn count(&mut self, start: u64, end: u64) -> (u64, u64) {
        let (mut read, mut zero) = (0, 0);
        let end = end.min(start.saturating_add(self.left));
        while start + read < end {
            let wanted = (end - start - read).min(STEP) as usize;
            let Ok(got) = self.memory.read_at(&mut self.buffer[..wanted], start + read) else { break };
            if got == 0 {
                break;
            }
            let pages = self.buffer[..got].chunks(self.os_page);
            zero += pages.filter(|page| is_zero(page)).map(|page| page.len() as u64).sum::<u64>();
            read += got as u64;
        }
        self.left -= read;
        (read, zero)
    }
}

fn is_zero(page: &[u8]) -> bool {
    let words = page.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()));
    // Most pages with data show it in their first bytes.
    page.iter().take(64).all(|&byte| byte == 0) && words.fold(0, |all, word| all | word) == 0
}
