//! The config file with its contexts. A context has the addresses of a Muster, certificates and a namespace.
//!
//! ```toml
//! current-context = "lab"
//!
//! [contexts.lab]
//! store = ["https://10.0.0.1:7400"]
//! controller = ["https://10.0.0.1:7500", "https://10.0.0.2:7500"]
//! tls-ca = "lab/ca.crt"
//! tls-cert = "lab/admin.crt"
//! tls-key = "lab/admin.key"
//! namespace = "default"
//! ```

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use muster_proto::name::Namespace;
use serde::{Deserialize, Serialize};

use super::ConfigPath;
use crate::failure::{Exit, Failure};
use crate::xdg;

/// The settings of one context. Absent settings have their defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Context {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) store: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "one_or_several")]
    pub(crate) controller: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tls_ca: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tls_cert: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tls_key: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "namespace")]
    pub(crate) namespace: Option<Namespace>,
}

/// The content and the path of the config file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contexts {
    /// `None` if neither a flag nor XDG_CONFIG_HOME nor HOME gives a path.
    path: Option<PathBuf>,
    pub(crate) file: File,
}

/// The content of the config file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct File {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) current_context: Option<String>,
    #[serde(default)]
    pub(crate) contexts: BTreeMap<String, Context>,
}

impl Contexts {
    /// Reads the file. A missing file counts as empty, unless a flag or variable names it.
    pub(crate) fn read(flags: &ConfigPath) -> Result<Contexts, Failure> {
        let contexts = Contexts::read_or_create(flags)?;
        match &flags.config {
            // Without the file the command would go to the default addresses, which may be another Muster.
            Some(path) if !path.exists() => Err(Failure::usage(format!("{} does not exist", path.display()))
                .hint("--config or MUSTER_CONTEXTS gives this path; `muster config set-context` creates the file")),
            _ => Ok(contexts),
        }
    }

    /// Reads the file. A missing file counts as empty, and [`write`](Self::write) creates it.
    pub(crate) fn read_or_create(flags: &ConfigPath) -> Result<Contexts, Failure> {
        let Some(path) =
            flags.config.clone().or_else(|| xdg::config_dir().map(|dir| dir.join("config.toml")))
        else {
            return Ok(Contexts { path: None, file: File::default() });
        };
        match std::fs::read_to_string(&path) {
            Ok(text) => {
                let file = parse(&text).map_err(|reason| unusable(&path, &reason))?;
                Ok(Contexts { path: Some(path), file })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Ok(Contexts { path: Some(path), file: File::default() })
            }
            Err(error) => Err(unusable(&path, &error.to_string())),
        }
    }

    /// The requested context, else the current one, with its file paths resolved; `None` if there is neither.
    pub(crate) fn choose(&self, requested: Option<&str>) -> Result<Option<Context>, Failure> {
        let Some(name) = requested.or(self.file.current_context.as_deref()) else { return Ok(None) };
        let context = self.get(name)?.clone();
        let directory = self.path.as_deref().and_then(Path::parent);
        Ok(Some(context.with_paths_relative_to(directory.unwrap_or(Path::new("")))))
    }

    pub(crate) fn get(&self, name: &str) -> Result<&Context, Failure> {
        self.file.contexts.get(name).ok_or_else(|| {
            let names: Vec<&str> = self.file.contexts.keys().map(String::as_str).collect();
            let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            Failure::new(Exit::NotFound, format!("there is no context `{name}` in {}", self.path_text()))
                .hint(format!("contexts: {known}; `muster config set-context {name} --store URL` creates it"))
        })
    }

    fn path_text(&self) -> String {
        self.path.as_ref().map_or_else(|| "the config file".to_owned(), |path| path.display().to_string())
    }

    /// Replaces the file atomically, so that no reader sees half of it.
    pub(crate) fn write(&self) -> Result<(), Failure> {
        let Some(path) = &self.path else {
            let failure = Failure::usage("there is no path for the config file: set XDG_CONFIG_HOME or HOME");
            return Err(failure.hint("--config gives the path of the file"));
        };
        let text = toml::to_string(&self.file).expect("contexts are texts");
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = directory.unwrap_or(Path::new("."));
        let written = std::fs::create_dir_all(directory).and_then(|()| {
            let mut file = tempfile::NamedTempFile::new_in(directory)?;
            io::Write::write_all(&mut file, text.as_bytes())?;
            file.persist(path).map_err(|error| error.error)
        });
        written.map(drop).map_err(|error| {
            Failure::new(Exit::Failed, format!("cannot write {}: {error}", path.display()))
                .hint("--config gives another path")
        })
    }
}

impl Context {
    /// Paths in a config file are relative to its directory, so that the directory can be moved as a whole.
    fn with_paths_relative_to(mut self, directory: &Path) -> Context {
        let files = [&mut self.tls_ca, &mut self.tls_cert, &mut self.tls_key];
        for path in files.into_iter().flatten() {
            *path = directory.join(&path);
        }
        self
    }
}

fn parse(text: &str) -> Result<File, String> {
    toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())
}

fn unusable(path: &Path, reason: &str) -> Failure {
    Failure::usage(format!("{}: {reason}", path.display()))
        .hint("correct the file, or give another one with --config")
}

/// One address is a text and several are a list, so that earlier releases can read a file with one.
mod one_or_several {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Addresses {
        One(String),
        Several(Vec<String>),
    }

    pub(super) fn serialize<S: Serializer>(addresses: &[String], serializer: S) -> Result<S::Ok, S::Error> {
        match addresses {
            [one] => Addresses::One(one.clone()),
            several => Addresses::Several(several.to_vec()),
        }
        .serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
        Ok(match Addresses::deserialize(deserializer)? {
            Addresses::One(address) => vec![address],
            Addresses::Several(addresses) => addresses,
        })
    }
}

/// Serializes a namespace as a string.
mod namespace {
    use muster_proto::name::Namespace;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(
        name: &Option<Namespace>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match name {
            Some(name) => serializer.serialize_str(name.as_str()),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Namespace>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| text.parse().map_err(|error| D::Error::custom(format!("`{text}` {error}"))))
            .transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
current-context = \"lab\"

[contexts.lab]
store = [\"https://10.0.0.1:7400\"]
controller = \"https://10.0.0.1:7500\"
tls-ca = \"pki/ca.crt\"
tls-cert = \"/etc/admin.crt\"
namespace = \"work\"

[contexts.other]
";

    fn contexts(text: &str) -> Contexts {
        Contexts { path: Some("/c/config.toml".into()), file: parse(text).unwrap() }
    }

    #[test]
    fn a_file_is_written_as_it_was_read() {
        let file = parse(FILE).unwrap();
        assert_eq!(toml::to_string(&file).unwrap(), FILE);
        assert_eq!(file.contexts["lab"].namespace, Some("work".parse().unwrap()));
        let several = "[contexts.lab]\ncontroller = [\"https://a:1\", \"https://b:1\"]\n";
        assert_eq!(toml::to_string(&parse(several).unwrap()).unwrap(), several);
    }

    #[test]
    fn paths_are_relative_to_the_directory_of_the_config_file() {
        let lab = contexts(FILE).choose(None).unwrap().unwrap();
        assert_eq!(lab.tls_ca.as_deref(), Some(Path::new("/c/pki/ca.crt")));
        assert_eq!(lab.tls_cert.as_deref(), Some(Path::new("/etc/admin.crt")));
    }

    #[test]
    fn the_requested_context_comes_before_the_current_one() {
        let contexts = contexts(FILE);
        assert_eq!(contexts.choose(None).unwrap().unwrap().namespace, Some("work".parse().unwrap()));
        assert_eq!(contexts.choose(Some("other")).unwrap(), Some(Context::default()));
        let refused = contexts.choose(Some("nix")).unwrap_err();
        assert_eq!(refused.exit(), Some(Exit::NotFound));
        assert!(refused.report("get").contains("contexts: lab, other"), "{}", refused.report("get"));
        assert_eq!(self::contexts("").choose(None).unwrap(), None);
    }

    #[test]
    fn unknown_settings_and_wrong_values_are_refused_by_name() {
        for (text, expected) in [
            ("curent-context = \"a\"", "curent-context"),
            ("[contexts.a]\nstroe = [\"x\"]", "stroe"),
            ("[contexts.a]\nnamespace = \"A_b\"", "A_b"),
            ("[contexts.a]\nstore = \"x\"", "store"),
        ] {
            let refused = parse(text).unwrap_err();
            assert!(refused.contains(expected), "{refused}");
        }
    }
}
