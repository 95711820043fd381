//! The classifier's search, compiled for the instructions that the machine has.
//!
//! The search counts bits all the time, which takes one instruction on every x86-64 server of the
//! last ten years but about twelve in a build for x86-64 in general.

use super::classifier::Classifier;
use tailwater_net::flow::FlowKey;

/// Runs [`Classifier::find`] in its best form.
#[inline]
pub(super) fn find(classifier: &Classifier, keys: &[FlowKey], found: &mut [Option<u32>]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("popcnt")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("avx2")
    {
        // SAFETY: the processor has every feature that the function is compiled for.
        unsafe { find_avx2(classifier, keys, found) };
        return;
    }
    classifier.find(keys, found);
}

/// For processors since Intel's Haswell and AMD's Excavator.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "popcnt,bmi1,bmi2,avx2")]
fn find_avx2(classifier: &Classifier, keys: &[FlowKey], found: &mut [Option<u32>]) {
    classifier.find(keys, found);
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
