//! `--dry-run`: shows what a command would do, and writes nothing.

/// Where a dry run is evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DryRun {
    /// In this process, from the record as it is now.
    Client,
}

impl std::str::FromStr for DryRun {
    type Err = String;

    fn from_str(text: &str) -> Result<DryRun, String> {
        match text {
            "client" => Ok(DryRun::Client),
            "server" => Err("the store cannot evaluate a write without making it, so there is only \
                             --dry-run=client: it checks manifests and shows the effect on the current records, \
                             but not whether the store would permit it"
                .to_owned()),
            _ => Err("expected client".to_owned()),
        }
    }
}

/// The flag of commands that change records.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct DryRunFlags {
    /// Show what would be done, and write nothing; rights and rules of the store are not checked
    #[arg(long, value_name = "client", num_args = 0..=1, require_equals = true, default_missing_value = "client")]
    pub(crate) dry_run: Option<DryRun>,
}

impl DryRunFlags {
    pub(crate) fn is_dry(self) -> bool {
        self.dry_run.is_some()
    }

    /// The end of a line about something that was done, or was not.
    pub(crate) fn suffix(self) -> &'static str {
        if self.is_dry() { " (dry run)" } else { "" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dry_run_on_the_server_is_refused_with_the_reason() {
        assert_eq!("client".parse(), Ok(DryRun::Client));
        assert!("server".parse::<DryRun>().unwrap_err().contains("only --dry-run=client"));
        assert!("none".parse::<DryRun>().is_err());
    }
}
