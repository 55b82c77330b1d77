use super::*;
use crate::testing::{PodBuilder, pod};

type Content = Result<Vec<Pod>, String>;

/// A pod as a manifest has it: neither bound nor stored.
fn manifest(builder: PodBuilder) -> Pod {
    let mut pod = builder.unstored().build();
    (pod.meta.uid, pod.spec.node_name) = (None, None);
    pod
}

fn static_pods() -> StaticPods {
    StaticPods::new("n1".parse().unwrap())
}

fn found(files: Vec<(&str, Content)>) -> BTreeMap<String, Content> {
    files.into_iter().map(|(name, content)| (name.to_owned(), content)).collect()
}

fn names(static_pods: &StaticPods) -> Vec<String> {
    static_pods.pods().map(|pod| Key::of(pod).to_string()).collect()
}

#[test]
fn s212_a_static_pod_is_bound_to_its_node_and_named_after_it() {
    let mut static_pods = static_pods();
    assert_eq!(static_pods.observe(found(vec![("a.yaml", Ok(vec![manifest(pod("web"))]))])), []);
    let pod = static_pods.pods().next().unwrap();
    assert_eq!(Key::of(pod).to_string(), "default/web-n1");
    assert!(pod.is_on("n1") && pod.is_static() && !pod.is_mirror());
    let taint = muster_proto::taint::Taint::new("any", "", TaintEffect::NoExecute);
    assert!(pod.spec.tolerations.iter().any(|toleration| toleration.tolerates(&taint)));
}

#[test]
fn s212_the_uid_follows_node_file_and_content() {
    let uid = |node: &str, file: &str, builder: PodBuilder| {
        let mut static_pods = StaticPods::new(node.parse().unwrap());
        static_pods.observe(found(vec![(file, Ok(vec![manifest(builder)]))]));
        static_pods.pods().next().unwrap().meta.uid.unwrap()
    };
    let first = uid("n1", "a.yaml", pod("web"));
    assert_eq!(first, uid("n1", "a.yaml", pod("web")));
    for other in [
        uid("n2", "a.yaml", pod("web")),
        uid("n1", "b.yaml", pod("web")),
        uid("n1", "a.yaml", pod("web").grace(5)),
    ] {
        assert_ne!(first, other);
    }
}

#[test]
fn s212_a_broken_file_costs_no_other_and_keeps_what_it_held() {
    let mut static_pods = static_pods();
    let good = || Ok(vec![manifest(pod("web"))]);
    let broken = || Err("is neither YAML nor JSON".to_owned());
    let news = static_pods.observe(found(vec![("a.yaml", broken()), ("b.yaml", good())]));
    assert_eq!(news.len(), 1);
    assert_eq!((news[0].file.as_str(), news[0].keeps_pods), ("a.yaml", false));
    assert_eq!((names(&static_pods), static_pods.broken()), (vec!["default/web-n1".to_owned()], 1));

    let news = static_pods.observe(found(vec![("a.yaml", broken()), ("b.yaml", broken())]));
    assert_eq!(news.len(), 1, "what is known is not said again");
    assert!(news[0].keeps_pods);
    assert_eq!(names(&static_pods), ["default/web-n1"]);

    assert_eq!(static_pods.observe(found(vec![("a.yaml", good())])), []);
    assert_eq!((names(&static_pods), static_pods.broken()), (vec!["default/web-n1".to_owned()], 0));
    static_pods.observe(BTreeMap::new());
    assert_eq!(names(&static_pods), [""; 0], "gone with the file");
}

#[test]
fn s212_what_a_static_pod_cannot_be_is_refused_by_name() {
    let with = |change: &dyn Fn(&mut Pod)| {
        let mut pod = manifest(pod("web"));
        change(&mut pod);
        Ok(vec![pod])
    };
    let secret = pb::ObjectVolume { name: "s".to_owned() };
    let volume = pb::Volume { name: "v".to_owned(), source: Some(pb::volume::Source::Secret(secret)) };
    for (content, expected) in [
        (with(&|pod| pod.spec.volumes = vec![volume.clone()]), "refers to a secret"),
        (with(&|pod| pod.spec.service_account_name = "x".to_owned()), "refers to a service account"),
        (with(&|pod| pod.spec.node_name = Some("n2".parse().unwrap())), "is bound to n2"),
        (with(&|pod| pod.meta.name = "w".repeat(252).parse().unwrap()), "must be 253 bytes or fewer"),
        (Ok(vec![manifest(pod("web")), manifest(pod("web").grace(1))]), "is in it twice"),
    ] {
        let news = static_pods().observe(found(vec![("a.yaml", content)]));
        assert!(news[0].reason.contains(expected), "{expected}: {:?}", news[0]);
    }
    let mut static_pods = static_pods();
    let one = || Ok(vec![manifest(pod("web"))]);
    let news = static_pods.observe(found(vec![("a.yaml", one()), ("b.yaml", one())]));
    assert_eq!(news[0].reason, "the pod default/web-n1 is in a.yaml already");
    assert_eq!(static_pods.pods().count(), 1);
}
