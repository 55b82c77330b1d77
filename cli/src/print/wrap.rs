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
    }
}
