//! Choice of a chain's core.

/// Core with the fewest chains, the first of several. `used` has a core for each chain on it.
///
/// # Panics
/// Without cores.
pub(super) fn lightest(cores: impl Iterator<Item = usize>, used: impl Iterator<Item = usize>) -> usize {
    let used: Vec<usize> = used.collect();
    let chains = |core: &usize| used.iter().filter(|other| *other == core).count();
    let lightest = cores.min_by_key(chains);
    lightest.unwrap_or_else(|| unreachable!("a server has a core"))
}

#[cfg(test)]
mod tests {
    use super::lightest;

    #[test]
    fn the_first_core_with_the_fewest_chains_is_chosen() {
        let choose = |used: &[usize]| lightest([3, 1, 2].into_iter(), used.iter().copied());
        assert_eq!(choose(&[]), 3);
        assert_eq!(choose(&[3]), 1);
        assert_eq!(choose(&[3, 1, 3]), 2);
        assert_eq!(choose(&[3, 1, 2, 3]), 1);
        assert_eq!(choose(&[7, 7]), 3);
    }
}
