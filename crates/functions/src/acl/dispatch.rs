//! Variants of the classifier's search, compiled for different instruction sets.
//!
//! The search mostly counts bits. A bit count takes one instruction on every x86-64 server of the last ten years, but
//! about twelve in a generic x86-64 build. With AVX-512, eight words of a set are unpacked and compared at once.

use super::rule_sets::RuleSets;
use tailwater_net::flow::FlowKey;

/// Search for the first rule in the intersection of several sets.
pub(super) trait Search: Copy {
    /// Same as [`RuleSets::first_in_all`].
    fn first_in_all<const SETS: usize>(self, sets: &RuleSets, positions: [u32; SETS]) -> Option<u32>;

    /// One step of that search, for summaries of one word. It processes the first words whose bits are set in `common`,
    /// which must not be 0, and clears those bits. Returns the lowest rule in these words that is in all sets, or
    /// [`NO_RULE`].
    fn step<const SETS: usize>(self, sets: &RuleSets, positions: [u32; SETS], common: &mut u64) -> u32;
}

/// Structure searched for keys. Its search is compiled for several instruction sets.
pub(super) trait Searchable {
    /// Writes to `found[i]` the index of the first rule that matches `keys[i]`. Always inlined, so that it is compiled
    /// with the caller's instruction set.
    fn find(&self, search: impl Search, keys: &[FlowKey], found: &mut [Option<u32>]);
}

/// Value that is no rule's number.
pub(super) const NO_RULE: u32 = u32::MAX;

/// Portable search, one word at a time.
#[derive(Clone, Copy)]
pub(super) struct ByWord;

impl Search for ByWord {
    #[inline(always)]
    fn first_in_all<const SETS: usize>(self, sets: &RuleSets, positions: [u32; SETS]) -> Option<u32> {
        sets.first_in_all(positions)
    }

    #[inline(always)]
    fn step<const SETS: usize>(self, sets: &RuleSets, positions: [u32; SETS], common: &mut u64) -> u32 {
        sets.step(positions, common).unwrap_or(NO_RULE)
    }
}

/// Runs [`Searchable::find`] in the fastest variant that the processor supports.
#[inline]
pub(super) fn find(classifier: &impl Searchable, keys: &[FlowKey], found: &mut [Option<u32>]) {
    #[cfg(target_arch = "x86_64")]
    {
        if let Some(by_eight) = x86::ByEight::detect() {
            return by_eight.find(classifier, keys, found);
        }
        if let Some(bits) = x86::Bits::detect() {
            return bits.find(classifier, keys, found);
        }
    }
    classifier.find(ByWord, keys, found);
}

/// Prefetches the cache line at an address, which may be invalid.
#[inline(always)]
pub(super) fn prefetch(address: *const u64) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch has no visible effect on memory and never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Variants for x86-64. A value of one of these types proves that the processor has the features.
#[cfg(target_arch = "x86_64")]
pub(super) mod x86 {
    use super::{ByWord, FlowKey, RuleSets, Search, Searchable};
    use core::arch::x86_64::{
        __m512i, _mm_cvtsi128_si64, _mm512_and_si512, _mm512_castsi512_si128, _mm512_loadu_si512,
        _mm512_maskz_compress_epi64, _mm512_maskz_expand_epi64, _mm512_set1_epi64, _mm512_test_epi64_mask,
    };

    /// Bit-manipulation instructions and 256-bit vectors: Intel Haswell, AMD Excavator, and later.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Bits(());

    impl Bits {
        /// Returns a value if this processor has the features.
        #[inline]
        pub(in super::super) fn detect() -> Option<Self> {
            (is_x86_feature_detected!("popcnt")
                && is_x86_feature_detected!("bmi1")
                && is_x86_feature_detected!("bmi2")
                && is_x86_feature_detected!("avx2"))
            .then_some(Bits(()))
        }

        /// Searches one word at a time.
        #[inline]
        pub(in super::super) fn find(self, classifier: &impl Searchable, keys: &[FlowKey], found: &mut [Option<u32>]) {
            // SAFETY: `self` exists, so `detect` has found every feature.
            unsafe { find_bits(classifier, keys, found) };
        }
    }

    #[target_feature(enable = "popcnt,bmi1,bmi2,avx2")]
    fn find_bits(classifier: &impl Searchable, keys: &[FlowKey], found: &mut [Option<u32>]) {
        classifier.find(ByWord, keys, found);
    }

    /// The features of [`Bits`] and 512-bit vectors: Intel Skylake servers, AMD Zen 4, and later.
    #[derive(Clone, Copy)]
    pub(in super::super) struct ByEight(());

    impl ByEight {
        /// Returns a value if this processor has the features.
        #[inline]
        pub(in super::super) fn detect() -> Option<Self> {
            Bits::detect()?;
            (is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl")).then_some(ByEight(()))
        }

        /// Searches eight words at a time.
        #[inline]
        pub(in super::super) fn find(self, classifier: &impl Searchable, keys: &[FlowKey], found: &mut [Option<u32>]) {
            // SAFETY: `self` exists, so `detect` has found every feature.
            unsafe { find_by_eight(self, classifier, keys, found) };
        }
    }

    #[target_feature(enable = "popcnt,bmi1,bmi2,avx2,avx512f,avx512vl")]
    fn find_by_eight(search: ByEight, classifier: &impl Searchable, keys: &[FlowKey], found: &mut [Option<u32>]) {
        classifier.find(search, keys, found);
    }

    impl Search for ByEight {
        #[inline(always)]
        fn first_in_all<const SETS: usize>(self, sets: &RuleSets, positions: [u32; SETS]) -> Option<u32> {
            // SAFETY: `self` exists, so `detect` has found every feature.
            unsafe { first_in_all_by_eight(sets, positions) }
        }

        #[inline(always)]
        fn step<const SETS: usize>(self, sets: &RuleSets, positions: [u32; SETS], common: &mut u64) -> u32 {
            // SAFETY: `self` exists, so `detect` has found every feature.
            unsafe { step_by_eight(sets, positions, common) }
        }
    }

    /// Same as [`Search::step`], for eight words.
    #[inline]
    #[target_feature(enable = "popcnt,bmi1,bmi2,avx2,avx512f,avx512vl")]
    fn step_by_eight<const SETS: usize>(sets: &RuleSets, positions: [u32; SETS], common: &mut u64) -> u32 {
        let shift = common.trailing_zeros() & 0x38;
        let below = (1_u64 << shift) - 1;
        *common &= !(0xff << shift);
        let mut words = _mm512_set1_epi64(-1);
        for position in positions {
            let set = sets.at(position);
            let at = 1 + (set[0] & below).count_ones() as usize;
            let mask = (set[0] >> shift) as u8;
            let packed = load(&set[at..at + 8]);
            words = _mm512_and_si512(words, _mm512_maskz_expand_epi64(mask, packed));
        }
        let non_zero = _mm512_test_epi64_mask(words, words);
        let first = _mm512_maskz_compress_epi64(non_zero, words);
        let word = _mm_cvtsi128_si64(_mm512_castsi512_si128(first)) as u64;
        let index = shift + non_zero.trailing_zeros();
        let rule = index * 64 + word.trailing_zeros();
        // Computed without a branch: the outcome is unpredictable.
        rule | u32::from(non_zero == 0).wrapping_neg()
    }

    /// Same as [`RuleSets::first_in_all`]. A byte of a summary covers eight words, of which only those with a set bit
    /// are stored. `expand` moves them to their positions.
    #[inline]
    #[target_feature(enable = "popcnt,bmi1,bmi2,avx2,avx512f,avx512vl")]
    fn first_in_all_by_eight<const SETS: usize>(sets: &RuleSets, positions: [u32; SETS]) -> Option<u32> {
        let parts = sets.summary_words();
        // Not `map`: its closure would be a function with target features and would not be inlined.
        let mut views: [&[u64]; SETS] = [&[]; SETS];
        for (view, position) in views.iter_mut().zip(positions) {
            *view = sets.at(position);
        }
        // Start of each set's words for the current summary word.
        let mut begin = [parts; SETS];
        for part in 0..parts {
            let mut summaries = [0; SETS];
            let mut common = u64::MAX;
            for (summary, view) in summaries.iter_mut().zip(views) {
                *summary = view[part];
                common &= *summary;
            }
            while common != 0 {
                let shift = common.trailing_zeros() & !7;
                let below = (1_u64 << shift) - 1;
                let mut words = _mm512_set1_epi64(-1);
                for i in 0..SETS {
                    let at = begin[i] + (summaries[i] & below).count_ones() as usize;
                    let packed = load(&views[i][at..at + 8]);
                    let mask = (summaries[i] >> shift) as u8;
                    words = _mm512_and_si512(words, _mm512_maskz_expand_epi64(mask, packed));
                }
                let non_zero = _mm512_test_epi64_mask(words, words);
                if non_zero != 0 {
                    let first = _mm512_maskz_compress_epi64(non_zero, words);
                    let word = _mm_cvtsi128_si64(_mm512_castsi512_si128(first)) as u64;
                    let index = part as u32 * 64 + shift + non_zero.trailing_zeros();
                    return Some(index * 64 + word.trailing_zeros());
                }
                common &= !(0xff << shift);
            }
            for (begin, summary) in begin.iter_mut().zip(summaries) {
                *begin += summary.count_ones() as usize;
            }
        }
        None
    }

    /// Loads the first eight words of a slice.
    ///
    /// # Panics
    /// If the slice has fewer than eight words.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn load(words: &[u64]) -> __m512i {
        let words = &words[..8];
        // SAFETY: the slice has the 64 bytes that are read, and the load needs no alignment.
        unsafe { _mm512_loadu_si512(words.as_ptr().cast()) }
    }
}
