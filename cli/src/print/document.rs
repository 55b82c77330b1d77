//! Records for programs: JSON and YAML, both readable by `muster apply`.

use serde_json::Value;

/// A language for documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Language {
    /// For programs
    Json,
    /// For programs and people
    Yaml,
}

/// One document; one that follows another is told apart from it.
pub(crate) fn document(value: &Value, language: Language, follows: bool) -> String {
    match language {
        Language::Json => {
            let text = serde_json::to_string_pretty(value).expect("a value is valid JSON");
            format!("{text}\n")
        }
        Language::Yaml => {
            // Folded and literal blocks read well but have corners that do not come back as they went out.
            let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
            let text = serde_saphyr::to_string_with_options(value, options).expect("a value is valid YAML");
            format!("{}{text}", if follows { "---\n" } else { "" })
        }
    }
}
