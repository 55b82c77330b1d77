//! Validates List and Watch requests, alike for all kinds.

use std::time::Duration;

use muster_proto::invalid::{Check, Path};
use muster_proto::name::Namespace;
use muster_proto::pb;
use muster_proto::record::Kind;
use muster_proto::selector::{FieldSelector, LabelSelector};

use muster_store_core::history::Revision;
use muster_store_core::list_page::{ListRequest, ListVersion, PageToken};
use muster_store_core::partial_decode;
use muster_store_core::selectors::Selectors;

use crate::error::StoreError;
use crate::watch_feed::{WatchRequest, WatchStart};

/// A watch without a timeout ends after a random time between once and twice this.
const MIN_LIFETIME: Duration = Duration::from_secs(30 * 60);

/// The fields of a list request, the same for all kinds.
pub(super) struct ListQuery {
    namespace: String,
    label_selector: String,
    field_selector: String,
    resource_version: u64,
    resource_version_match: String,
    page_size: u32,
    page_token: String,
}

/// The fields of a watch request, the same for all kinds.
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

queries!(pb::ListJoinTokensRequest, pb::WatchJoinTokensRequest, |_| String::new(), |_| String::new());
queries!(pb::ListCertificateRequestsRequest, pb::WatchCertificateRequestsRequest, |_| String::new(), |_| {
    String::new()
});
queries!(
    pb::ListPriorityClassesRequest,
    pb::WatchPriorityClassesRequest,
    |_| String::new(),
    |_| String::new()
);
queries!(pb::ListRevocationsRequest, pb::WatchRevocationsRequest, |_| String::new(), |_| String::new());

#[derive(Clone, Copy, PartialEq)]
enum VersionMatch {
    Unset,
    NotOlderThan,
    Exact,
}

fn version_match(check: &mut Check, text: &str) -> VersionMatch {
    match text {
        "" => VersionMatch::Unset,
        "NotOlderThan" => VersionMatch::NotOlderThan,
        "Exact" => VersionMatch::Exact,
        _ => {
            check.fail(&Path::ROOT.key("resourceVersionMatch"), "must be NotOlderThan or Exact");
            VersionMatch::Unset
        }
    }
}

fn selectors(check: &mut Check, kind: Kind, namespace: &str, labels: &str, fields: &str) -> Selectors {
    if !namespace.is_empty() {
        check.field(&Path::ROOT.key("namespace"), namespace.parse::<Namespace>());
    }
    let labels = check.field(&Path::ROOT.key("labelSelector"), labels.parse::<LabelSelector>());
    let fields = FieldSelector::parse(fields, partial_decode::selectable(kind));
    let fields = check.field(&Path::ROOT.key("fieldSelector"), fields);
    Selectors {
        namespace: namespace.to_owned(),
        labels: labels.unwrap_or_default(),
        fields: fields.unwrap_or_default(),
    }
}

impl ListQuery {
    pub(super) fn check(&self, kind: Kind) -> Result<ListRequest, StoreError> {
        let mut check = Check::new();
        let root = Path::ROOT;
        let selectors =
            selectors(&mut check, kind, &self.namespace, &self.label_selector, &self.field_selector);
        let wanted = version_match(&mut check, &self.resource_version_match);
        if wanted == VersionMatch::Exact && self.resource_version == 0 {
            check.fail(&root.key("resourceVersionMatch"), "Exact needs a resourceVersion above 0");
        }
        let query_hash = self.query_hash(kind);
        let mut version = match (self.resource_version, wanted) {
            (0, _) => ListVersion::Latest,
            (version, VersionMatch::Exact) => ListVersion::Exact(version),
            (version, _) => ListVersion::NotOlderThan(version),
        };
        if !self.page_token.is_empty() {
            let path = root.key("pageToken");
            check.ensure(
                &root.key("resourceVersion"),
                self.resource_version == 0,
                "cannot be given with a pageToken, which contains a resource version",
            );
            if let Some(token) = check.field(&path, PageToken::parse(&self.page_token, query_hash)) {
                version = ListVersion::Continue(token);
            }
        }
        Ok(check.finish(ListRequest {
            kind,
            selectors,
            version,
            limit: self.page_size as usize,
            query_hash,
            later_renewals: true,
        })?)
    }

    /// A page token is valid only for a request with the same kind, namespace and selectors.
    fn query_hash(&self, kind: Kind) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        for part in [&kind.to_string(), &self.namespace, &self.label_selector, &self.field_selector] {
            hasher.update(part.as_bytes());
            hasher.update(&[0]);
        }
        hasher.finalize()
    }
}

impl WatchQuery {
    /// The validated watch, and the revision that the store must have reached before it starts.
    pub(super) fn check(&self, kind: Kind) -> Result<(WatchRequest, Revision), StoreError> {
        let mut check = Check::new();
        let path = Path::ROOT.key("resourceVersionMatch");
        let selectors =
            selectors(&mut check, kind, &self.namespace, &self.label_selector, &self.field_selector);
        let wanted = version_match(&mut check, &self.resource_version_match);
        match (self.send_initial_events, wanted) {
            (true, VersionMatch::NotOlderThan) | (false, VersionMatch::Unset) => {}
            (true, _) => check.fail(&path, "must be NotOlderThan with sendInitialEvents"),
            (false, _) => check.fail(&path, "can only be given with sendInitialEvents"),
        }
        let start = match (self.send_initial_events, self.resource_version) {
            (true, _) => WatchStart::Initial { end_bookmark: true },
            (false, 0) => WatchStart::Initial { end_bookmark: false },
            (false, version) => WatchStart::After(version),
        };
        let lifetime = match self.timeout_seconds {
            0 => MIN_LIFETIME + MIN_LIFETIME.mul_f64(f64::from(random_byte()) / 255.0),
            seconds => Duration::from_secs(u64::from(seconds)),
        };
        let bookmarks = self.allow_bookmarks;
        check.finish(())?;
        Ok((WatchRequest { kind, selectors, start, bookmarks, lifetime }, self.resource_version))
    }
}

/// Randomizes the ends of streams, so that watchers do not all reconnect at once.
fn random_byte() -> u8 {
    uuid::Uuid::new_v4().as_bytes()[0]
}
