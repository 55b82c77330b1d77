//! Records as JSON and YAML documents. `muster apply` reads both.

use serde_json::Value;

/// The language of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Language {
    /// JSON
    Json,
    /// YAML
    Yaml,
}

/// One document. A YAML document that is not the first starts with a separator.
pub(crate) fn document(value: &Value, language: Language, is_first: bool) -> String {
    match language {
        Language::Json => {
            let text = serde_json::to_string_pretty(value).expect("a value is valid JSON");
            format!("{text}\n")
        }
        Language::Yaml => {
            // Folded and literal blocks are easy to read, but some texts do not survive a round trip through them.
            let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
            let text = serde_saphyr::to_string_with_options(value, options).expect("a value is valid YAML");
            format!("{}{text}", if is_first { "" } else { "---\n" })
        }
    }
}
