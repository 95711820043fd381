//! Lists of processors in the kernel's format: `0-3,8`.

use std::fmt;
use tailwater_dataplane::cores::{format_list, parse_kernel_list};

/// Ascending processor numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuList(Vec<usize>);

impl CpuList {
    /// Parses a list. An empty text is an empty list. Returns `None` for an invalid text.
    pub fn parse(text: &str) -> Option<CpuList> {
        parse_kernel_list(text).map(CpuList::from)
    }

    /// Returns the processor numbers.
    pub fn numbers(&self) -> &[usize] {
        &self.0
    }

    /// Returns `true` if the list is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns `true` if the list contains the processor.
    pub fn has(&self, cpu: usize) -> bool {
        self.0.binary_search(&cpu).is_ok()
    }

    /// Returns the processors that are in both lists.
    pub fn and(&self, other: &CpuList) -> CpuList {
        CpuList(self.0.iter().copied().filter(|&cpu| other.has(cpu)).collect())
    }

    /// Returns the processors that are not in the other list.
    pub fn without(&self, other: &CpuList) -> CpuList {
        CpuList(self.0.iter().copied().filter(|&cpu| !other.has(cpu)).collect())
    }
}

impl From<Vec<usize>> for CpuList {
    fn from(mut cpus: Vec<usize>) -> CpuList {
        cpus.sort_unstable();
        cpus.dedup();
        CpuList(cpus)
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format_list(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_written() {
        for (text, numbers) in [("", &[][..]), ("3", &[3]), ("0-2,5,7-8", &[0, 1, 2, 5, 7, 8])] {
            let list = CpuList::parse(text).unwrap();
            assert_eq!(list.numbers(), numbers);
            assert_eq!(list.to_string(), text);
        }
        assert_eq!(CpuList::parse("4,2,2-3").unwrap().numbers(), [2, 3, 4]);
        assert_eq!(CpuList::parse("1;2"), None);
    }

    #[test]
    fn lists_are_compared() {
        let list = |text| CpuList::parse(text).unwrap();
        assert_eq!(list("0-4").and(&list("3-9")), list("3-4"));
        assert_eq!(list("0-4").without(&list("3-9")), list("0-2"));
        assert!(list("0-4").has(4) && !list("0-4").has(5));
    }
}
