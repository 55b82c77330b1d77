//! Formats of files in /sys and /etc that facts are read from.

/// How many numbers a list such as `0-3,5` has.
pub(super) fn list_length(text: &str) -> Option<u32> {
    let mut length: u32 = 0;
    for range in text.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        length = length.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    (length > 0).then_some(length)
}

/// The numbers of a list such as `0-3,5`; none for an empty list.
pub(super) fn list(text: &str) -> Option<Vec<u32>> {
    /// More numbers than any machine has: a longer list is not a list of processors.
    const LONGEST: u32 = 1 << 16;
    if text.trim().is_empty() {
        return Some(Vec::new());
    }
    list_length(text).filter(|&length| length <= LONGEST)?;
    let mut numbers = Vec::new();
    for range in text.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        numbers.extend(first.parse::<u32>().ok()?..=last.parse().ok()?);
    }
    Some(numbers)
}

/// The page size in the name of a directory such as `hugepages-2048kB`, in bytes.
pub(super) fn huge_page_size(directory: &str) -> Option<u64> {
    let kib: u64 = directory.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
    kib.checked_mul(1024)
}

/// The value of a key of /etc/os-release, without its quotes.
pub(super) fn os_release(text: &str, key: &str) -> Option<String> {
    let value = text.lines().find_map(|line| line.trim().strip_prefix(key)?.strip_prefix('='))?;
    let quoted = |quote: char| value.strip_prefix(quote)?.strip_suffix(quote);
    let Some(inner) = quoted('"') else {
        return Some(quoted('\'').unwrap_or(value).to_owned());
    };
    // Inside double quotes a backslash escapes the next character, as in a shell.
    let (mut plain, mut characters) = (String::new(), inner.chars());
    while let Some(character) = characters.next() {
        plain.extend(if character == '\\' { characters.next() } else { Some(character) });
    }
    Some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_ranges_is_counted() {
        for (text, expected) in [
            ("0\n", Some(1)),
            ("0-3\n", Some(4)),
            ("0-3,5,8-9", Some(7)),
            ("", None),
            ("\n", None),
            ("3-1", None),
            ("a", None),
            ("0-4294967295", None),
        ] {
            assert_eq!(list_length(text), expected, "{text:?}");
        }
    }

    #[test]
    fn a_list_of_ranges_is_spelled_out() {
        for (text, expected) in [
            ("0\n", Some(vec![0])),
            ("0-2,5\n", Some(vec![0, 1, 2, 5])),
            ("\n", Some(vec![])),
            ("a", None),
            ("0-4000000000", None),
        ] {
            assert_eq!(list(text), expected, "{text:?}");
        }
    }

    #[test]
    fn the_size_of_huge_pages_is_in_the_name_of_their_directory() {
        assert_eq!(huge_page_size("hugepages-2048kB"), Some(2 << 20));
        assert_eq!(huge_page_size("hugepages-1048576kB"), Some(1 << 30));
        assert_eq!(huge_page_size("hugepages-x"), None);
    }

    #[test]
    fn the_operating_system_names_itself_with_or_without_quotes() {
        for (text, expected) in [
            ("ID=debian\nPRETTY_NAME=\"Debian GNU/Linux 12\"\n", Some("Debian GNU/Linux 12")),
            ("PRETTY_NAME='Plain'", Some("Plain")),
            ("PRETTY_NAME=Bare", Some("Bare")),
            ("PRETTY_NAME=\"a \\\"b\\\" \\\\ c\"", Some("a \"b\" \\ c")),
            ("PRETTY_NAME=\"open", Some("\"open")),
            ("OTHER_PRETTY_NAME=x", None),
        ] {
            assert_eq!(os_release(text, "PRETTY_NAME").as_deref(), expected, "{text:?}");
        }
    }
}
