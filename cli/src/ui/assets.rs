//! The files of the page, which are part of the program: it needs no files beside it and no other origin.

/// A file of the page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asset {
    /// Its path below the root of the page.
    pub(super) path: &'static str,
    pub(super) content: &'static str,
}

macro_rules! assets {
    ($($path:literal),* $(,)?) => {
        &[$(Asset { path: $path, content: include_str!(concat!("../../page/", $path)) }),*]
    };
}

/// All files. The root of the page is the first one.
pub(super) const ASSETS: &[Asset] = assets![
    "index.html",
    "style.css",
    "icon.svg",
    "main.js",
    "actions.js",
    "api.js",
    "dom.js",
    "feed.js",
    "fleet.js",
    "keys.js",
    "layout.js",
    "list.js",
    "map.js",
    "marks.js",
    "paint.js",
    "panel-fleet.js",
    "panel-node.js",
    "pointer.js",
    "search.js",
    "theme.js",
    "verdict.js",
    "view.js",
    "words.js",
    "zones.js",
];

impl Asset {
    /// The file at a path.
    pub(super) fn find(path: &str) -> Option<Asset> {
        let path = if path.is_empty() { ASSETS[0].path } else { path };
        ASSETS.iter().copied().find(|asset| asset.path == path)
    }

    pub(super) fn content_type(self) -> &'static str {
        match self.path.rsplit_once('.').map_or("", |(_, extension)| extension) {
            "html" => "text/html; charset=utf-8",
            "css" => "text/css; charset=utf-8",
            "svg" => "image/svg+xml",
            _ => "text/javascript; charset=utf-8",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_file_of_the_page_is_part_of_the_program() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/page");
        let files = std::fs::read_dir(folder).unwrap();
        let files: BTreeSet<String> =
            files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        let embedded: BTreeSet<String> = ASSETS.iter().map(|asset| asset.path.to_owned()).collect();
        assert_eq!(files, embedded);
    }

    #[test]
    fn every_module_that_a_file_names_exists() {
        for asset in ASSETS {
            for (_, rest) in asset
                .content
                .match_indices(" from './")
                .map(|(at, text)| asset.content.split_at(at + text.len()))
            {
                let name = rest.split('\'').next().unwrap();
                assert!(Asset::find(name).is_some(), "{} imports {name}", asset.path);
            }
        }
    }

    #[test]
    fn the_page_has_nothing_that_its_own_policy_forbids() {
        for asset in ASSETS {
            for forbidden in
                ["innerHTML", "outerHTML", "insertAdjacentHTML", " style=", "onclick=", "eval(", "https://"]
            {
                assert!(!asset.content.contains(forbidden), "{} has {forbidden}", asset.path);
            }
        }
    }

    #[test]
    fn a_path_names_one_file_and_the_empty_path_the_page() {
        assert_eq!(Asset::find("").unwrap().content_type(), "text/html; charset=utf-8");
        assert_eq!(Asset::find("main.js").unwrap().content_type(), "text/javascript; charset=utf-8");
        for path in ["nothing", "../Cargo.toml", "page/main.js"] {
            assert!(Asset::find(path).is_none(), "{path}");
        }
    }
}
