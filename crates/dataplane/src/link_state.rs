//! Link state of a port, with its changes.

/// Link state at the last check.
#[derive(Debug, Default)]
pub(crate) struct LinkState {
    up: Option<bool>,
    changes: u64,
}

impl LinkState {
    /// Message about the link: if it is down at first, or has changed. `None` if the state is not known.
    pub(crate) fn news(&mut self, up: Option<bool>) -> Option<&'static str> {
        let before = self.up;
        let now = up.filter(|up| before != Some(*up))?;
        self.up = Some(now);
        self.changes += u64::from(before.is_some());
        match (before, now) {
            (None, true) => None,
            (_, true) => Some("up"),
            (_, false) => Some("down"),
        }
    }

    /// Number of changes.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_told_when_it_changes_or_is_down_at_first() {
        let mut link = LinkState::default();
        let mut news = |up: Option<bool>| link.news(up);
        let seen = [Some(true), None, Some(true), Some(false), None, Some(false)];
        let expected = [None, None, None, Some("down"), None, None];
        assert_eq!(seen.map(&mut news), expected);
        assert_eq!([Some(true), Some(true)].map(&mut news), [Some("up"), None]);
        assert_eq!(link.changes(), 2);
        let mut down = LinkState::default();
        assert_eq!((down.news(Some(false)), down.changes()), (Some("down"), 0));
    }
}
