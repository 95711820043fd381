//! Groups by name.

use crate::error::ServeError;

/// Number of a group, given by name or number.
///
/// # Errors
/// There is no such group in `/etc/group`.
pub(super) fn number(group: &str) -> Result<u32, ServeError> {
    if let Ok(number) = group.parse() {
        return Ok(number);
    }
    let text = std::fs::read_to_string("/etc/group").unwrap_or_default();
    in_text(&text, group).ok_or_else(|| ServeError::NoGroup(group.to_owned()))
}

/// Number of a group in the text of `/etc/group`: lines of `name:password:number:members`.
fn in_text(text: &str, group: &str) -> Option<u32> {
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let is_it = fields.next() == Some(group);
        is_it.then(|| fields.nth(1)?.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_by_name_or_number() {
        assert_eq!(in_text("root:x:0:\nops:x:1200:ann,bob\n", "ops"), Some(1200));
        assert_eq!(in_text("root:x:0:\nops:x\n", "ops"), None);
        assert_eq!(number("77").unwrap(), 77);
        let error = number("no such group").unwrap_err().to_string();
        assert_eq!(error, "spec.control.readers: there is no group \"no such group\"");
    }
}
