//! The parser of templates and paths.

use std::str::FromStr;

use serde_json::Value;

use super::{Comparison, Filter, Operand, Part, Path, Start, Step, Template};

/// Why a text is not a template, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}, at character {at} of `{text}`")]
pub(crate) struct ParseError {
    text: String,
    /// From 1.
    at: usize,
    reason: String,
}

impl FromStr for Template {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Template, ParseError> {
        let mut parser = Parser::new(text);
        let parts = parser.template(false)?;
        Ok(Template(parts))
    }
}

impl FromStr for Path {
    type Err = ParseError;

    /// A path with or without braces, and with or without its first dot: `{.a.b}`, `.a.b` and `a.b` are the same.
    fn from_str(text: &str) -> Result<Path, ParseError> {
        let mut parser = Parser::new(text.trim());
        let is_braced = parser.take('{');
        let path = parser.relaxed_path()?;
        parser.spaces();
        if is_braced {
            parser.expect('}')?;
        }
        match parser.peek() {
            None => Ok(path),
            Some(_) => Err(parser.error("expected the end of the path")),
        }
    }
}

/// The deepest nesting of ranges and filters, so that no input exhausts the stack.
const MAX_DEPTH: usize = 32;

struct Parser<'a> {
    text: &'a str,
    /// The place of the next character, in bytes.
    at: usize,
    depth: usize,
}

type Parsed<T> = Result<T, ParseError>;

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Parser<'a> {
        Parser { text, at: 0, depth: 0 }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.at += next.len_utf8();
        Some(next)
    }

    fn take(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        if found {
            self.at += wanted.len_utf8();
        }
        found
    }

    fn take_text(&mut self, wanted: &str) -> bool {
        let found = self.rest().starts_with(wanted);
        if found {
            self.at += wanted.len();
        }
        found
    }

    /// Takes a word that ends before a space or a brace.
    fn take_word(&mut self, word: &str) -> bool {
        let after = self.rest().strip_prefix(word).map(|after| after.chars().next());
        let found = after.is_some_and(|next| next.is_none_or(|next| next.is_whitespace() || next == '}'));
        if found {
            self.at += word.len();
        }
        found
    }

    fn spaces(&mut self) {
        while self.peek().is_some_and(char::is_whitespace) {
            self.next();
        }
    }

    fn expect(&mut self, wanted: char) -> Parsed<()> {
        if self.take(wanted) { Ok(()) } else { Err(self.error(format!("expected `{wanted}`"))) }
    }

    fn error(&self, reason: impl Into<String>) -> ParseError {
        let at = self.text[..self.at].chars().count() + 1;
        ParseError { text: self.text.to_owned(), at, reason: reason.into() }
    }

    fn nested<T>(&mut self, parse: impl FnOnce(&mut Parser<'a>) -> Parsed<T>) -> Parsed<T> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.error("too many ranges or filters inside each other"));
        }
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    /// Text and blocks in braces, until the end of the text or of the range that the caller is in.
    fn template(&mut self, is_in_range: bool) -> Parsed<Vec<Part>> {
        let mut parts = Vec::new();
        loop {
            let literal = self.rest().split('{').next().unwrap_or_default();
            if !literal.is_empty() {
                parts.push(Part::Text(literal.to_owned()));
                self.at += literal.len();
            }
            if !self.take('{') {
                return if is_in_range { Err(self.error("`{range}` has no `{end}`")) } else { Ok(parts) };
            }
            if self.block(&mut parts, is_in_range)? == BlockEnd::OfRange {
                return Ok(parts);
            }
        }
    }

    /// What is inside of one pair of braces.
    fn block(&mut self, parts: &mut Vec<Part>, is_in_range: bool) -> Parsed<BlockEnd> {
        loop {
            self.spaces();
            if self.take('}') {
                return Ok(BlockEnd::OfBlock);
            }
            if self.take_word("range") {
                self.spaces();
                let path = self.path()?;
                self.spaces();
                self.expect('}')?;
                let inner = self.nested(|parser| parser.template(true))?;
                parts.push(Part::Range(path, inner));
                return Ok(BlockEnd::OfBlock);
            }
            if self.take_word("end") {
                self.spaces();
                self.expect('}')?;
                return if is_in_range {
                    Ok(BlockEnd::OfRange)
                } else {
                    Err(self.error("`{end}` without `{range}`"))
                };
            }
            match self.peek() {
                None => return Err(self.error("`{` is not closed by `}`")),
                Some('"' | '\'') => parts.push(Part::Text(self.quoted()?)),
                Some('.' | '[' | '$' | '@' | '*') => parts.push(Part::Path(self.path()?)),
                Some(_) => {
                    return Err(
                        self.error("expected a path such as .metadata.name, a quoted text, `range` or `end`")
                    );
                }
            }
        }
    }

    fn relaxed_path(&mut self) -> Parsed<Path> {
        self.spaces();
        match self.peek() {
            Some('.' | '[' | '$' | '@' | '*') => self.path(),
            _ => {
                let first = self.field()?;
                let mut path = Path { start: Start::Current, steps: vec![Step::Field(first)] };
                self.steps(&mut path.steps)?;
                Ok(path)
            }
        }
    }

    fn path(&mut self) -> Parsed<Path> {
        let start = if self.take('$') {
            Start::Root
        } else {
            self.take('@');
            Start::Current
        };
        let mut steps = Vec::new();
        if self.take('*') {
            steps.push(Step::All);
        }
        self.steps(&mut steps)?;
        Ok(Path { start, steps })
    }

    fn steps(&mut self, steps: &mut Vec<Step>) -> Parsed<()> {
        loop {
            if self.take_text("..") {
                steps.push(Step::Descend);
                match self.peek() {
                    Some('[') => {}
                    Some('*') => {
                        self.next();
                        steps.push(Step::All);
                    }
                    _ => steps.push(Step::Field(self.field()?)),
                }
            } else if self.take('.') {
                match self.peek() {
                    // `.` alone is the current value, and `.[0]` is `[0]`.
                    None | Some('[' | '}' | ' ' | ')' | ']') => {}
                    Some('*') => {
                        self.next();
                        steps.push(Step::All);
                    }
                    _ => steps.push(Step::Field(self.field()?)),
                }
            } else if self.take('[') {
                steps.push(self.brackets()?);
            } else {
                return Ok(());
            }
        }
    }

    /// The name of a field. A backslash makes the next character a part of it: `kubernetes\.io/hostname`.
    fn field(&mut self) -> Parsed<String> {
        let mut name = String::new();
        while let Some(next) = self.peek() {
            match next {
                '\\' => {
                    self.next();
                    match self.next() {
                        Some(escaped) => name.push(escaped),
                        None => return Err(self.error("expected a character after `\\`")),
                    }
                }
                '.' | ',' | '[' | ']' | '$' | '@' | '{' | '}' | '(' | ')' | '=' | '!' | '<' | '>' => break,
                next if next.is_whitespace() => break,
                next => {
                    name.push(next);
                    self.next();
                }
            }
        }
        if name.is_empty() { Err(self.error("expected the name of a field")) } else { Ok(name) }
    }

    /// What follows `[`.
    fn brackets(&mut self) -> Parsed<Step> {
        self.spaces();
        if self.take('?') {
            self.expect('(')?;
            let filter = self.nested(Parser::filter)?;
            self.spaces();
            self.expect(')')?;
            self.spaces();
            self.expect(']')?;
            return Ok(Step::Filter(Box::new(filter)));
        }
        let mut steps = vec![self.selector()?];
        self.spaces();
        while self.take(',') {
            self.spaces();
            steps.push(self.selector()?);
            self.spaces();
        }
        self.expect(']')?;
        Ok(if steps.len() == 1 { steps.remove(0) } else { Step::Union(steps) })
    }

    fn selector(&mut self) -> Parsed<Step> {
        match self.peek() {
            Some('*') => {
                self.next();
                Ok(Step::All)
            }
            Some('"' | '\'') => Ok(Step::Field(self.quoted()?)),
            Some(':' | '-' | '0'..='9') => self.item_or_slice(),
            _ => Err(self.error("expected a number, a quoted name, `*` or `?(...)` in the brackets")),
        }
    }

    fn item_or_slice(&mut self) -> Parsed<Step> {
        let from = self.integer()?;
        if !self.take(':') {
            return from.map(Step::Item).ok_or_else(|| self.error("expected a number"));
        }
        let to = self.integer()?;
        let by = if self.take(':') { self.integer()?.unwrap_or(1) } else { 1 };
        if by < 1 {
            return Err(self.error("the step of a slice must be 1 or more"));
        }
        Ok(Step::Slice { from, to, by })
    }

    fn integer(&mut self) -> Parsed<Option<i64>> {
        let is_digit = |(i, c): &(usize, char)| c.is_ascii_digit() || (*i == 0 && *c == '-');
        let digits: String = self.rest().char_indices().take_while(is_digit).map(|(_, c)| c).collect();
        if digits.is_empty() {
            return Ok(None);
        }
        let number = digits.parse().map_err(|_| self.error("expected a number"))?;
        self.at += digits.len();
        Ok(Some(number))
    }

    fn filter(&mut self) -> Parsed<Filter> {
        let left = self.operand()?;
        self.spaces();
        let comparison = [
            ("==", Comparison::Equal),
            ("!=", Comparison::NotEqual),
            ("<=", Comparison::LessOrEqual),
            (">=", Comparison::GreaterOrEqual),
            ("<", Comparison::Less),
            (">", Comparison::Greater),
        ];
        for (sign, comparison) in comparison {
            if self.take_text(sign) {
                let right = self.operand()?;
                self.spaces();
                if self.rest().starts_with("&&") || self.rest().starts_with("||") {
                    return Err(self.error("a filter has one comparison; use two filters for `&&`"));
                }
                return Ok(Filter::Compare(left, comparison, right));
            }
        }
        Ok(Filter::Exists(left))
    }

    fn operand(&mut self) -> Parsed<Operand> {
        self.spaces();
        match self.peek() {
            Some('"' | '\'') => Ok(Operand::Value(Value::String(self.quoted()?))),
            Some('@' | '$' | '.') => Ok(Operand::Path(self.path()?)),
            _ => self.constant().map(Operand::Value),
        }
    }

    /// A number, `true`, `false` or `null`.
    fn constant(&mut self) -> Parsed<Value> {
        let word: String =
            self.rest().chars().take_while(|c| c.is_ascii_alphanumeric() || "+-.".contains(*c)).collect();
        match serde_json::from_str(&word) {
            Ok(value) => {
                self.at += word.len();
                Ok(value)
            }
            Err(_) => Err(self.error("expected a path, a number or a quoted text")),
        }
    }

    /// A text in single or double quotes, with the escapes `\n`, `\t`, `\r`, `\\`, `\"`, `\'` and `\uXXXX`.
    fn quoted(&mut self) -> Parsed<String> {
        let quote = self.next();
        let mut text = String::new();
        loop {
            match self.next() {
                None => return Err(self.error("the quoted text has no end")),
                end if end == quote => return Ok(text),
                Some('\\') => text.push(self.escape()?),
                Some(other) => text.push(other),
            }
        }
    }

    fn escape(&mut self) -> Parsed<char> {
        match self.next() {
            Some('n') => Ok('\n'),
            Some('t') => Ok('\t'),
            Some('r') => Ok('\r'),
            Some('u') => {
                let digits = self.rest().get(..4).unwrap_or_default();
                let found = u32::from_str_radix(digits, 16).ok().and_then(char::from_u32);
                self.at += if found.is_some() { 4 } else { 0 };
                found.ok_or_else(|| self.error("expected four hexadecimal digits after `\\u`"))
            }
            Some(same @ ('\\' | '"' | '\'' | '/')) => Ok(same),
            _ => Err(self.error("unknown escape in a quoted text")),
        }
    }
}

/// What ended a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockEnd {
    /// Its brace.
    OfBlock,
    /// `end`, and with it the range.
    OfRange,
}
