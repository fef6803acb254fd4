//! Fast random numbers. The caller keeps the state, which [`crate::Os::random`] seeds.

/// Returns the next number of a generator (xorshift64*) whose state is not 0.
#[inline]
pub fn next(state: &mut u64) -> u64 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    state.wrapping_mul(0x2545_F491_4F6C_DD1D)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches random numbers in which a bit is mostly set, or mostly clear.
    #[test]
    fn random_numbers_are_even() {
        for mut state in 1..5 {
            let mut set = [0; 64];
            for _ in 0..4096 {
                let n = next(&mut state);
                set.iter_mut().enumerate().for_each(|(bit, count)| *count += n >> bit & 1);
            }
            assert!(set.iter().all(|count| (1800..2300).contains(count)), "{set:?}");
        }
    }

    /// Catches a generator other than xorshift64*: the expected numbers are those of other implementations.
    #[test]
    fn random_numbers_are_known() {
        for (mut state, numbers) in [
            (1, [0x47E4_CE4B_896C_DD1D, 0xABCF_A6A8_E079_651D, 0xB9D1_0D8F_EB73_1F57]),
            (0x0123_4567_89AB_CDEF, [0x7C94_8247_2CB6_708C, 0xD570_5692_BF1F_28DE, 0x88B7_1E3B_A5E0_05C0]),
        ] {
            assert_eq!([(); 3].map(|()| next(&mut state)), numbers);
        }
    }
}
