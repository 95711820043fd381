//! The classifier's search, compiled for the instructions that the machine has.
//!
//! The search counts bits all the time, which takes one instruction on every x86-64 server of the
//! last ten years but about twelve in a build for x86-64 in general. With AVX-512 eight words of
//! a set are unpacked and compared at once.

use super::classifier::Classifier;
use super::rule_sets::RuleSets;
use tailwater_net::flow::FlowKey;

/// How the first rule in several sets is found.
pub(super) trait Search: Copy {
    /// As [`RuleSets::first_in_all`].
    fn first_in_all<const SETS: usize>(self, sets: &RuleSets, positions: [u32; SETS]) -> Option<u32>;

    /// A step of that search where summaries are one word: looks at the first words that `common`
    /// names, which must name one, and takes them out of there. The lowest rule among them that is in
    /// all sets, or [`NO_RULE`].
    fn step<const SETS: usize>(self, sets: &RuleSets, positions: [u32; SETS], common: &mut u64) -> u32;
}

/// No rule's number.
pub(super) const NO_RULE: u32 = u32::MAX;

/// Word by word, on every machine.
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

/// Runs [`Classifier::find`] in its best form.
#[inline]
pub(super) fn find(classifier: &Classifier, keys: &[FlowKey], found: &mut [Option<u32>]) {
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

/// Asks for the cache line at an address, which may be any, to be fetched.
#[inline(always)]
pub(super) fn prefetch(address: *const u64) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing that the program can see and never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Forms for x86-64. A value of these types is the proof that the processor has the features.
#[cfg(target_arch = "x86_64")]
pub(super) mod x86 {
    use super::{ByWord, Classifier, FlowKey, RuleSets, Search};
    use core::arch::x86_64::{
        __m512i, _mm_cvtsi128_si64, _mm512_and_si512, _mm512_castsi512_si128, _mm512_loadu_si512,
        _mm512_maskz_compress_epi64, _mm512_maskz_expand_epi64, _mm512_set1_epi64, _mm512_test_epi64_mask,
    };

    /// Instructions for bits and 256-bit vectors: Intel's Haswell, AMD's Excavator, and later.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Bits(());

    impl Bits {
        /// Whether this processor has them.
        #[inline]
        pub(in super::super) fn detect() -> Option<Self> {
            (is_x86_feature_detected!("popcnt")
                && is_x86_feature_detected!("bmi1")
                && is_x86_feature_detected!("bmi2")
                && is_x86_feature_detected!("avx2"))
            .then_some(Bits(()))
        }

        /// Word by word.
        #[inline]
        pub(in super::super) fn find(self, classifier: &Classifier, keys: &[FlowKey], found: &mut [Option<u32>]) {
            // SAFETY: `self` exists, so `detect` has found every feature.
            unsafe { find_bits(classifier, keys, found) };
        }
    }

    #[target_feature(enable = "popcnt,bmi1,bmi2,avx2")]
    fn find_bits(classifier: &Classifier, keys: &[FlowKey], found: &mut [Option<u32>]) {
        classifier.find(ByWord, keys, found);
    }

    /// These and 512-bit vectors: Intel's Skylake servers, AMD's Zen 4, and later.
    #[derive(Clone, Copy)]
    pub(in super::super) struct ByEight(());

    impl ByEight {
        /// Whether this processor has them.
        #[inline]
        pub(in super::super) fn detect() -> Option<Self> {
            Bits::detect()?;
            (is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl")).then_some(ByEight(()))
        }

        /// Eight words at a time.
        #[inline]
        pub(in super::super) fn find(self, classifier: &Classifier, keys: &[FlowKey], found: &mut [Option<u32>]) {
            // SAFETY: `self` exists, so `detect` has found every feature.
            unsafe { find_by_eight(self, classifier, keys, found) };
        }
    }

    #[target_feature(enable = "popcnt,bmi1,bmi2,avx2,avx512f,avx512vl")]
    fn find_by_eight(search: ByEight, classifier: &Classifier, keys: &[FlowKey], found: &mut [Option<u32>]) {
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

    /// As [`Search::step`], with eight words.
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
        // By arithmetic: whether there is one cannot be predicted.
        rule | u32::from(non_zero == 0).wrapping_neg()
    }

    /// As [`RuleSets::first_in_all`]. A byte of a summary stands for eight words, those of which
    /// are stored that its bits say; `expand` puts them in their places.
    #[inline]
    #[target_feature(enable = "popcnt,bmi1,bmi2,avx2,avx512f,avx512vl")]
    fn first_in_all_by_eight<const SETS: usize>(sets: &RuleSets, positions: [u32; SETS]) -> Option<u32> {
        let parts = sets.summary_words();
        // Not `map`: its closure would be a function with features and not be inlined there.
        let mut views: [&[u64]; SETS] = [&[]; SETS];
        for (view, position) in views.iter_mut().zip(positions) {
            *view = sets.at(position);
        }
        // Where each set's words of the current summary word begin.
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

    /// The first eight of at least eight words.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn load(words: &[u64]) -> __m512i {
        let words = &words[..8];
        // SAFETY: the slice has the 64 bytes that are read; any alignment will do.
        unsafe { _mm512_loadu_si512(words.as_ptr().cast()) }
    }
}
