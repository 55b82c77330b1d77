//! Checks the flags, one function for each group of flags.

use std::time::Duration;

use muster_agent_core::pod_security::IdRange;
use muster_agent_core::resources::swap::SwapBehavior;
use muster_agent_core::resources::topology::Policy;
use muster_proto::feature_gates;
use muster_proto::name::{Name, NameError};
use muster_proto::quantity::Quantity;
use muster_rpc::tls::{ClientTls, PemFile, Security};

use super::lists;
use super::{
    CapacityConfig, Config, ConfigError, EvictionConfig, EvictionFlags, Flags, NodeConfig, NodeFlags,
    NodeIps, PodSecurityConfig, PodSecurityFlags, ShutdownConfig, StatusConfig, StatusFlags, SwapConfig,
    TopologyConfig, WorkFlags,
};
use crate::runtime::logs::LogLimits;

/// How often a status is computed by default.
const UPDATE_FREQUENCY: Duration = Duration::from_secs(10);
/// How often an unchanged status is posted by default.
const REPORT_FREQUENCY: Duration = Duration::from_secs(5 * 60);
/// The longest lease that the store accepts.
const MAX_LEASE_SECONDS: i64 = 3600;

impl TryFrom<&Flags> for Config {
    type Error = ConfigError;

    fn try_from(flags: &Flags) -> Result<Self, ConfigError> {
        let (ips, mut warnings) = NodeIps::parse(&flags.node.node_ip).map_err(refuse("node-ip"))?;
        warnings.extend(flags.hints.iter().cloned());
        let stores: Vec<String> = lists::entries(&flags.store).map(str::to_owned).collect();
        if stores.is_empty() {
            return Err(refuse("store")("must name at least one store"));
        }
        let security = flags.tls.security(flags.listen)?;
        Ok(Self {
            stores,
            client_tls: client_tls(flags, &security)?,
            state_dir: flags.state_dir.clone(),
            has_joined: false,
            listen: flags.listen,
            http_listen: flags.http_listen,
            security,
            server: flags.server.clone(),
            node: node(&flags.node, ips)?,
            status: status(&flags.status)?,
            lease_duration: lease_duration(flags.status.node_lease_duration_seconds)?,
            capacity: capacity(&flags.status)?,
            eviction: eviction(&flags.eviction)?,
            shutdown: shutdown(&flags.work)?,
            topology: topology(&flags.work)?,
            swap: swap(&flags.work)?,
            pod_max_pids: pod_max_pids(flags.work.pod_max_pids)?,
            log_limits: log_limits(&flags.work)?,
            pod_security: pod_security(&flags.pod_security)?,
            pod_manifest_path: flags.work.pod_manifest_path.clone(),
            legacy_conditions: flags.status.legacy_conditions,
            warnings,
        })
    }
}

/// Makes an error that names the flag.
fn refuse<E: ToString>(flag: &'static str) -> impl Fn(E) -> ConfigError {
    move |reason| ConfigError::Flag { flag, reason: reason.to_string() }
}

fn chosen<T: std::str::FromStr<Err = String>>(flag: &'static str, text: &str) -> Result<T, ConfigError> {
    text.trim().parse().map_err(refuse(flag))
}

fn swap(flags: &WorkFlags) -> Result<SwapConfig, ConfigError> {
    let behavior = chosen("memory-swap-behavior", &flags.memory_swap_behavior)?;
    if is_off(flags, "NodeSwap")? && behavior != SwapBehavior::NoSwap {
        return Err(refuse("feature-gates")("NodeSwap=false contradicts --memory-swap-behavior"));
    }
    Ok(SwapConfig { fail_on: flags.fail_swap_on, behavior })
}

fn topology(flags: &WorkFlags) -> Result<TopologyConfig, ConfigError> {
    let policy = chosen("topology-manager-policy", &flags.topology_manager_policy)?;
    if is_off(flags, "TopologyManager")? && policy != Policy::None {
        return Err(refuse("feature-gates")("TopologyManager=false contradicts --topology-manager-policy"));
    }
    Ok(TopologyConfig { policy, scope: chosen("topology-manager-scope", &flags.topology_manager_scope)? })
}

/// Whether a feature gate is switched off. The other gates are checked too.
fn is_off(flags: &WorkFlags, gate: &str) -> Result<bool, ConfigError> {
    let gates = feature_gates::read(lists::entries(&flags.feature_gates)).map_err(refuse("feature-gates"))?;
    Ok(gates.get(gate) == Some(&false))
}

/// The client certificate: from its own directory, or the one that the agent serves with.
fn client_tls(flags: &Flags, security: &Security) -> Result<Option<ClientTls>, ConfigError> {
    let Some(directory) = &flags.credentials else { return Ok(security.client()) };
    if directory.is_file() {
        let reason = "must be a directory with ca.crt, tls.crt and tls.key; a kubeconfig file is not read";
        return Err(refuse("credentials")(reason));
    }
    let [ca, cert, key] = ["ca.crt", "tls.crt", "tls.key"].map(|name| directory.join(name));
    let file = |path| PemFile::new("--credentials", path);
    Ok(Some(ClientTls::read(file(&ca), file(&cert), file(&key))?))
}

fn node(flags: &NodeFlags, ips: NodeIps) -> Result<NodeConfig, ConfigError> {
    let taints = lists::taints(&flags.register_with_taints).map_err(refuse("register-with-taints"))?;
    let cloud = chosen("cloud-provider", &flags.cloud_provider)?;
    Ok(NodeConfig {
        keep_name: flags.keep_node_name,
        name: given_name(flags)?,
        register: flags.register_node,
        labels: lists::labels(&flags.node_labels).map_err(refuse("node-labels"))?,
        // A node that an administrator creates gets its taints from the administrator.
        taints: if flags.register_node { taints } else { Vec::new() },
        ips,
        cloud,
        provider_id: flags.provider_id.trim().to_owned(),
    })
}

/// The name from either flag; both may be given if they agree.
fn given_name(flags: &NodeFlags) -> Result<Option<Name>, ConfigError> {
    let parse = |flag, text: &Option<String>| {
        text.as_deref().map(normal_name).transpose().map_err(refuse::<NameError>(flag))
    };
    let name = parse("node-name", &flags.node_name)?;
    let override_ = parse("hostname-override", &flags.hostname_override)?;
    match (name, override_) {
        (Some(name), Some(other)) if name != other => {
            Err(refuse("hostname-override")("contradicts --node-name: give one of them"))
        }
        (name, other) => Ok(name.or(other)),
    }
}

/// A hostname as a node name: without blanks around it, and in lower case.
pub(super) fn normal_name(text: &str) -> Result<Name, NameError> {
    text.trim().to_lowercase().parse()
}

fn status(flags: &StatusFlags) -> Result<StatusConfig, ConfigError> {
    let update = flags.node_status_update_frequency;
    // An operator who sets a faster update frequency wants the status posted faster too.
    let report = flags.node_status_report_frequency.or(update);
    let positive = |flag, duration: Duration| {
        if duration.is_zero() { Err(refuse(flag)("must be more than 0")) } else { Ok(duration) }
    };
    let max_images = match flags.node_status_max_images {
        -1 => None,
        count => Some(usize::try_from(count).map_err(|_| {
            refuse("node-status-max-images")("must be -1 for all images, 0, or the number of images")
        })?),
    };
    Ok(StatusConfig {
        update_frequency: positive("node-status-update-frequency", update.unwrap_or(UPDATE_FREQUENCY))?,
        report_frequency: positive("node-status-report-frequency", report.unwrap_or(REPORT_FREQUENCY))?,
        max_images,
    })
}

fn lease_duration(seconds: i64) -> Result<Duration, ConfigError> {
    match u64::try_from(seconds) {
        Ok(seconds @ 1..) if seconds <= MAX_LEASE_SECONDS.unsigned_abs() => Ok(Duration::from_secs(seconds)),
        _ => {
            let reason = format!("must be 1 to {MAX_LEASE_SECONDS}");
            Err(refuse("node-lease-duration-seconds")(reason))
        }
    }
}

fn capacity(flags: &StatusFlags) -> Result<CapacityConfig, ConfigError> {
    Ok(CapacityConfig {
        max_pods: count("max-pods", flags.max_pods)?,
        pods_per_core: count("pods-per-core", flags.pods_per_core)?,
        system_reserved: lists::reservations(&flags.system_reserved).map_err(refuse("system-reserved"))?,
        kube_reserved: lists::reservations(&flags.kube_reserved).map_err(refuse("kube-reserved"))?,
    })
}

fn count(flag: &'static str, value: i64) -> Result<u32, ConfigError> {
    // At most 31 bits: Kubernetes has these numbers as signed 32-bit integers.
    match i32::try_from(value).map(u32::try_from) {
        Ok(Ok(count)) => Ok(count),
        _ => Err(refuse(flag)(format!("must be 0 to {}", i32::MAX))),
    }
}

fn eviction(flags: &EvictionFlags) -> Result<EvictionConfig, ConfigError> {
    let texts = |list: &[String]| lists::entries(list).map(str::to_owned).collect();
    let max_pod_grace = count("eviction-max-pod-grace-period", flags.eviction_max_pod_grace_period)?;
    Ok(EvictionConfig {
        hard: texts(&flags.eviction_hard),
        soft: texts(&flags.eviction_soft),
        soft_grace_period: texts(&flags.eviction_soft_grace_period),
        minimum_reclaim: texts(&flags.eviction_minimum_reclaim),
        max_pod_grace_period: Duration::from_secs(max_pod_grace.into()),
        pressure_transition_period: flags.eviction_pressure_transition_period,
    })
}

fn pod_max_pids(count: i64) -> Result<Option<u64>, ConfigError> {
    match (count, u64::try_from(count)) {
        (-1, _) => Ok(None),
        (_, Ok(count @ 1..)) => Ok(Some(count)),
        _ => Err(refuse("pod-max-pids")("must be -1 for no limit, or the number of processes")),
    }
}

fn log_limits(flags: &WorkFlags) -> Result<LogLimits, ConfigError> {
    let size: Quantity =
        flags.container_log_max_size.trim().parse().map_err(refuse("container-log-max-size"))?;
    let max_bytes = u64::try_from(size.value()).ok().filter(|bytes| *bytes > 0);
    let max_files = u32::try_from(flags.container_log_max_files).ok().filter(|files| *files >= 2);
    Ok(LogLimits {
        max_bytes: max_bytes.ok_or_else(|| refuse("container-log-max-size")("must be more than 0"))?,
        max_files: max_files.ok_or_else(|| refuse("container-log-max-files")("must be 2 or more"))?,
    })
}

fn pod_security(flags: &PodSecurityFlags) -> Result<PodSecurityConfig, ConfigError> {
    let own_ids: IdRange = flags.pod_uid_range.parse().map_err(refuse("pod-uid-range"))?;
    if own_ids.contains(0) {
        return Err(refuse("pod-uid-range")("must not contain 0, which is root"));
    }
    let allowed = lists::entries(&flags.allow_run_as).map(str::parse::<IdRange>);
    let allowed_ids: Vec<IdRange> = allowed.collect::<Result<_, _>>().map_err(refuse("allow-run-as"))?;
    if let Some(shared) = allowed_ids.iter().find(|allowed| allowed.overlaps(&own_ids)) {
        let reason = format!("{shared} overlaps --pod-uid-range: a pod could run as the user of another");
        return Err(refuse("allow-run-as")(reason));
    }
    Ok(PodSecurityConfig { own_ids, allowed_ids, allow_privileged: flags.allow_privileged })
}

fn shutdown(flags: &WorkFlags) -> Result<ShutdownConfig, ConfigError> {
    const BY_PRIORITY: &str = "shutdown-grace-period-by-pod-priority";
    let by_pod_priority =
        lists::priorities(&flags.shutdown_grace_period_by_pod_priority).map_err(refuse(BY_PRIORITY))?;
    let (total, critical) = (flags.shutdown_grace_period, flags.shutdown_grace_period_critical_pods);
    let by_duration = !total.is_zero() || !critical.is_zero();
    if by_duration && !by_pod_priority.is_empty() {
        let reason = "contradicts --shutdown-grace-period and --shutdown-grace-period-critical-pods: \
                      give either these or that";
        return Err(refuse(BY_PRIORITY)(reason));
    }
    Ok(ShutdownConfig {
        grace_period: total,
        critical_pods: critical,
        by_pod_priority,
        on_sigterm: flags.shutdown_on_sigterm,
    })
}
