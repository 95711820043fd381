//! A CPU that lacks instructions that the program was compiled for is told in one line. Otherwise the program would end
//! by an illegal instruction somewhere.
//!
//! A module with `unsafe` code: it runs before `main`, whose first instructions may be of that kind.

#[cfg(all(target_arch = "x86_64", target_os = "linux", target_feature = "avx2"))]
mod avx2 {
    use std::arch::asm;
    use std::arch::x86_64::__cpuid_count;

    /// SSSE3, FMA, SSE4.1, SSE4.2, MOVBE, POPCNT, OSXSAVE, AVX, F16C: leaf 1, ECX.
    const LEAF_1: u32 = 1 << 9 | 1 << 12 | 1 << 19 | 1 << 20 | 1 << 22 | 1 << 23 | 1 << 27 | 1 << 28 | 1 << 29;
    /// BMI1, AVX2, BMI2: leaf 7, EBX.
    const LEAF_7: u32 = 1 << 3 | 1 << 5 | 1 << 8;
    /// LZCNT: leaf 0x8000_0001, ECX.
    const LEAF_LZCNT: u32 = 1 << 5;
    /// Registers of SSE and AVX, which the system has to save: XCR0.
    const SAVED: u32 = 1 << 1 | 1 << 2;

    const MESSAGE: &[u8] = b"error: this program was built for CPUs with AVX2, BMI and MOVBE (x86-64-v3: servers \
        since 2013), and this one lacks some of them: build it for this machine by RUSTFLAGS=\"-C target-cpu=native\" \
        make build\n";

    /// The loader calls functions of this section before `main`.
    // SAFETY: entries of `.init_array` are functions of the C calling convention that return nothing; the arguments
    // that the loader passes are ignored. The function neither allocates nor panics, and needs nothing that is set up
    // in `main`.
    #[used]
    #[unsafe(link_section = ".init_array")]
    static CHECK: extern "C" fn() = check;

    extern "C" fn check() {
        if !is_sufficient() {
            // SAFETY: the message is valid for its length, and both calls are allowed at any time.
            unsafe {
                libc::write(2, MESSAGE.as_ptr().cast(), MESSAGE.len());
                libc::_exit(1);
            }
        }
    }

    fn is_sufficient() -> bool {
        let basic = __cpuid_count(0, 0).eax;
        let extended = __cpuid_count(0x8000_0000, 0).eax;
        if basic < 7 || extended < 0x8000_0001 || __cpuid_count(1, 0).ecx & LEAF_1 != LEAF_1 {
            return false;
        }
        let saved: u32;
        // SAFETY: the CPU has OSXSAVE, so that user programs may read XCR0.
        unsafe { asm!("xgetbv", in("ecx") 0, out("eax") saved, out("edx") _, options(nomem, nostack)) };
        saved & SAVED == SAVED
            && __cpuid_count(7, 0).ebx & LEAF_7 == LEAF_7
            && __cpuid_count(0x8000_0001, 0).ecx & LEAF_LZCNT == LEAF_LZCNT
    }
}
