//! The text form of label selectors: `a=b`, `a==b`, `a!=b`, `a in (x,y)`, `a notin (x,y)`, `a`, `!a`.
//!
//! Requirements are separated by commas; blanks between tokens are ignored. `in` and `notin` are operators only where
//! an operator is expected, so they can also be keys and values. A missing value is the empty text.

use super::{Operator, Requirement, SelectorError};
use crate::invalid::Quoted;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    Symbol(&'a str),
    End,
}

struct Tokens<'a> {
    rest: &'a str,
}

/// Parses a whole selector; blank text is the empty selector.
pub(super) fn requirements(text: &str) -> Result<Vec<Requirement>, SelectorError> {
    let mut tokens = Tokens { rest: text };
    let mut requirements = Vec::new();
    if tokens.peek() == Token::End {
        return Ok(requirements);
    }
    loop {
        requirements.push(requirement(&mut tokens)?);
        match tokens.next() {
            Token::End => return Ok(requirements),
            Token::Symbol(",") => {}
            found => return Err(unexpected("',' or the end", found)),
        }
    }
}

fn requirement(tokens: &mut Tokens<'_>) -> Result<Requirement, SelectorError> {
    if tokens.skip("!") {
        return Requirement::new(word(tokens, "a label key after '!'")?, Operator::DoesNotExist, []);
    }
    let key = word(tokens, "a label key")?;
    match tokens.peek() {
        Token::End | Token::Symbol(",") => return Requirement::new(key, Operator::Exists, []),
        _ => {}
    }
    match tokens.next() {
        Token::Symbol("=" | "==") => Requirement::new(key, Operator::In, [value(tokens)]),
        Token::Symbol("!=") => Requirement::new(key, Operator::NotIn, [value(tokens)]),
        Token::Word("in") => Requirement::new(key, Operator::In, values(tokens)?),
        Token::Word("notin") => Requirement::new(key, Operator::NotIn, values(tokens)?),
        found => Err(unexpected("'=', '==', '!=', 'in' or 'notin' after the label key", found)),
    }
}

fn word<'a>(tokens: &mut Tokens<'a>, expected: &'static str) -> Result<&'a str, SelectorError> {
    match tokens.next() {
        Token::Word(word) => Ok(word),
        found => Err(unexpected(expected, found)),
    }
}

/// One value, which is empty when no word follows.
fn value<'a>(tokens: &mut Tokens<'a>) -> &'a str {
    match tokens.peek() {
        Token::Word(word) => {
            tokens.next();
            word
        }
        _ => "",
    }
}

fn values<'a>(tokens: &mut Tokens<'a>) -> Result<Vec<&'a str>, SelectorError> {
    match tokens.next() {
        Token::Symbol("(") => {}
        found => return Err(unexpected("'(' before the values", found)),
    }
    let mut values = Vec::new();
    loop {
        values.push(value(tokens));
        match tokens.next() {
            Token::Symbol(")") => return Ok(values),
            Token::Symbol(",") => {}
            found => return Err(unexpected("',' or ')' among the values", found)),
        }
    }
}

fn unexpected(expected: &'static str, found: Token<'_>) -> SelectorError {
    let found = match found {
        Token::Word(text) | Token::Symbol(text) => Quoted(text).to_string(),
        Token::End => "the end".to_owned(),
    };
    SelectorError::Unexpected { expected, found }
}

impl<'a> Tokens<'a> {
    fn peek(&self) -> Token<'a> {
        Tokens { rest: self.rest }.next()
    }

    fn next(&mut self) -> Token<'a> {
        const SYMBOLS: [&str; 7] = ["==", "!=", "=", "!", "(", ")", ","];
        let text = self.rest.trim_start();
        if text.is_empty() {
            self.rest = text;
            return Token::End;
        }
        if let Some(symbol) = SYMBOLS.iter().find(|&&symbol| text.starts_with(symbol)) {
            let (symbol, rest) = text.split_at(symbol.len());
            self.rest = rest;
            return Token::Symbol(symbol);
        }
        let end = text.find(|c: char| c.is_whitespace() || "=!(),".contains(c)).unwrap_or(text.len());
        let (word, rest) = text.split_at(end);
        self.rest = rest;
        Token::Word(word)
    }

    /// Consumes the symbol if it is next.
    fn skip(&mut self, symbol: &str) -> bool {
        let found = self.peek() == Token::Symbol(symbol);
        if found {
            self.next();
        }
        found
    }
}
