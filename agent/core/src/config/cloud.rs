//! Flags that take one of a few words.

use std::str::FromStr;

/// Who knows the machine besides its agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cloud {
    /// Nobody.
    #[default]
    None,
    /// A cloud plug-in, which fills in addresses and lifts the uninitialized taint.
    External,
}

impl FromStr for Cloud {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "" => Ok(Self::None),
            "external" => Ok(Self::External),
            _ => Err(format!("{text:?} must be external, or empty")),
        }
    }
}
