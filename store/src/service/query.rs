//! What List and Watch requests ask for, checked.

use std::time::Duration;

use muster_proto::invalid::{Check, Path};
use muster_proto::name::Namespace;
use muster_proto::pb;
use muster_proto::record::Kind;
use muster_proto::selector::{FieldSelector, LabelSelector};

use crate::error::StoreError;
use crate::watch_feed::{From as Start, WatchRequest};
use muster_store_core::history::Revision;
use muster_store_core::list_page::{At, List, Token};
use muster_store_core::partial_decode;
use muster_store_core::selectors::Selection;

/// A stream ends by itself between once and twice this time.
const LIFETIME: Duration = Duration::from_secs(30 * 60);

/// The words of a list request, the same for every kind.
pub(super) struct ListQuery {
    namespace: String,
    label_selector: String,
    field_selector: String,
    resource_version: u64,
    resource_version_match: String,
    page_size: u32,
    page_token: String,
}

/// The words of a watch request, the same for every kind.
pub(super) struct WatchQuery {
    namespace: String,
    label_selector: String,
    field_selector: String,
    resource_version: u64,
    resource_version_match: String,
    send_initial_events: bool,
    allow_bookmarks: bool,
    timeout_seconds: u32,
}

macro_rules! queries {
    ($list:ty, $watch:ty, $namespace:expr, $watched_namespace:expr) => {
        impl From<$list> for ListQuery {
            fn from(request: $list) -> Self {
                let namespace: fn(&$list) -> String = $namespace;
                Self {
                    namespace: namespace(&request),
                    label_selector: request.label_selector,
                    field_selector: request.field_selector,
                    resource_version: request.resource_version,
                    resource_version_match: request.resource_version_match,
                    page_size: request.page_size,
                    page_token: request.page_token,
                }
            }
        }

        impl From<$watch> for WatchQuery {
            fn from(request: $watch) -> Self {
                let namespace: fn(&$watch) -> String = $watched_namespace;
                Self {
                    namespace: namespace(&request),
                    label_selector: request.label_selector,
                    field_selector: request.field_selector,
                    resource_version: request.resource_version,
                    resource_version_match: request.resource_version_match,
                    send_initial_events: request.send_initial_events,
                    allow_bookmarks: request.allow_bookmarks,
                    timeout_seconds: request.timeout_seconds,
                }
            }
        }
    };
}

queries!(pb::ListNodesRequest, pb::WatchNodesRequest, |_| String::new(), |_| String::new());
queries!(pb::ListLeasesRequest, pb::WatchLeasesRequest, |list| list.namespace.clone(), |watch| watch
    .namespace
    .clone());
queries!(pb::ListPodsRequest, pb::WatchPodsRequest, |list| list.namespace.clone(), |watch| watch
    .namespace
    .clone());
queries!(
    pb::ListDisruptionBudgetsRequest,
    pb::WatchDisruptionBudgetsRequest,
    |list| list.namespace.clone(),
    |watch| watch.namespace.clone()
);
queries!(pb::ListEventsRequest, pb::WatchEventsRequest, |list| list.namespace.clone(), |watch| watch
    .namespace
    .clone());

#[derive(Clone, Copy, PartialEq)]
enum Match {
    Unset,
    NotOlderThan,
    Exact,
}

fn version_match(check: &mut Check, text: &str) -> Match {
    match text {
        "" => Match::Unset,
        "NotOlderThan" => Match::NotOlderThan,
        "Exact" => Match::Exact,
        _ => {
            check.fail(&Path::ROOT.key("resourceVersionMatch"), "must be NotOlderThan or Exact");
            Match::Unset
        }
    }
}

fn selection(check: &mut Check, kind: Kind, namespace: &str, labels: &str, fields: &str) -> Selection {
    if !namespace.is_empty() {
        check.field(&Path::ROOT.key("namespace"), namespace.parse::<Namespace>());
    }
    let labels = check.field(&Path::ROOT.key("labelSelector"), labels.parse::<LabelSelector>());
    let fields = FieldSelector::parse(fields, partial_decode::selectable(kind));
    let fields = check.field(&Path::ROOT.key("fieldSelector"), fields);
    Selection {
        namespace: namespace.to_owned(),
        labels: labels.unwrap_or_default(),
        fields: fields.unwrap_or_default(),
    }
}

impl ListQuery {
    pub(super) fn check(&self, kind: Kind) -> Result<List, StoreError> {
        let mut check = Check::new();
        let root = Path::ROOT;
        let selection =
            selection(&mut check, kind, &self.namespace, &self.label_selector, &self.field_selector);
        let wanted = version_match(&mut check, &self.resource_version_match);
        if wanted == Match::Exact && self.resource_version == 0 {
            check.fail(&root.key("resourceVersionMatch"), "Exact needs a resourceVersion above 0");
        }
        let query = self.fingerprint(kind);
        let mut at = match (self.resource_version, wanted) {
            (0, _) => At::Now,
            (version, Match::Exact) => At::Exactly(version),
            (version, _) => At::NotOlderThan(version),
        };
        if !self.page_token.is_empty() {
            let path = root.key("pageToken");
            check.ensure(
                &root.key("resourceVersion"),
                self.resource_version == 0,
                "cannot be given with a pageToken, which has a version of its own",
            );
            if let Some(token) = check.field(&path, Token::parse(&self.page_token, query)) {
                at = At::Continue(token);
            }
        }
        Ok(check.finish(List {
            kind,
            selection,
            at,
            limit: self.page_size as usize,
            query,
            later_renewals: true,
        })?)
    }

    /// A token must come back with the selectors it was made for.
    fn fingerprint(&self, kind: Kind) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        for part in [&kind.to_string(), &self.namespace, &self.label_selector, &self.field_selector] {
            hasher.update(part.as_bytes());
            hasher.update(&[0]);
        }
        hasher.finalize()
    }
}

impl WatchQuery {
    /// The watch asked for, and the version the store must have reached.
    pub(super) fn check(&self, kind: Kind) -> Result<(WatchRequest, Revision), StoreError> {
        let mut check = Check::new();
        let path = Path::ROOT.key("resourceVersionMatch");
        let selection =
            selection(&mut check, kind, &self.namespace, &self.label_selector, &self.field_selector);
        let wanted = version_match(&mut check, &self.resource_version_match);
        match (self.send_initial_events, wanted) {
            (true, Match::NotOlderThan) | (false, Match::Unset) => {}
            (true, _) => check.fail(&path, "must be NotOlderThan with sendInitialEvents"),
            (false, _) => check.fail(&path, "can only be given with sendInitialEvents"),
        }
        let from = match (self.send_initial_events, self.resource_version) {
            (true, _) => Start::Present { marked: true },
            (false, 0) => Start::Present { marked: false },
            (false, version) => Start::After(version),
        };
        let lifetime = match self.timeout_seconds {
            0 => LIFETIME + LIFETIME.mul_f64(f64::from(random_byte()) / 255.0),
            seconds => Duration::from_secs(u64::from(seconds)),
        };
        let bookmarks = self.allow_bookmarks;
        check.finish(())?;
        Ok((WatchRequest { kind, selection, from, bookmarks, lifetime }, self.resource_version))
    }
}

/// Spreads the ends of streams, so that watchers do not come back all at once.
fn random_byte() -> u8 {
    uuid::Uuid::new_v4().as_bytes()[0]
}
