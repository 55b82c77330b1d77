//! `--cloud-provider`: whether a cloud plug-in manages the node too.

use std::str::FromStr;

/// The cloud plug-in that manages the node besides its agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cloud {
    /// There is none.
    #[default]
    None,
    /// A plug-in fills in addresses and removes the uninitialized taint.
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
