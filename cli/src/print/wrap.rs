//! Text in lines of a given width.

use unicode_width::UnicodeWidthStr;

/// The lines of a text, broken between words. A word that is wider than a line has a line of its own.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is always a line");
        if line.is_empty() {
            line.push_str(word);
        } else if line.width() + 1 + word.width() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

/// A paragraph with a line break after each line.
pub(crate) fn paragraph(text: &str, width: usize) -> String {
    wrap(text, width).iter().map(|line| format!("{line}\n")).collect()
}

/// A text in lines of that width, the later ones indented.
pub(crate) fn hanging(text: &str, width: usize) -> String {
    const INDENT: &str = "    ";
    let mut lines = wrap(text, width).into_iter();
    let first = lines.next().unwrap_or_default();
    let rest = lines.collect::<Vec<_>>().join(" ");
    if rest.is_empty() {
        return format!("{first}\n");
    }
    let rest = wrap(&rest, width.saturating_sub(INDENT.len()));
    let rest: String = rest.iter().map(|line| format!("{INDENT}{line}\n")).collect();
    format!("{first}\n{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_between_words() {
        assert_eq!(wrap("", 10), [""]);
        assert_eq!(wrap("one two three", 8), ["one two", "three"]);
        assert_eq!(wrap("one two three", usize::MAX), ["one two three"]);
        assert_eq!(wrap("a node.kubernetes.io/x b", 8), ["a", "node.kubernetes.io/x", "b"]);
        assert_eq!(wrap("漢字 漢字", 5), ["漢字", "漢字"], "a wide character takes two columns");
        assert_eq!(paragraph("one two", 3), "one\ntwo\n");
        assert_eq!(hanging("one two three", 80), "one two three\n");
        assert_eq!(hanging("one two three four", 11), "one two\n    three\n    four\n");
        assert_eq!(hanging("", 80), "\n");
    }
}
