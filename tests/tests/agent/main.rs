//! The real `muster-agent` with a real store: two processes, and the containers that the agent starts.

mod container_files;
mod duplicate_node_name;
mod events;
mod heartbeat;
mod pods;
mod registration;
mod security;
mod shutdown;
mod start;
mod status;
mod store_connection;
