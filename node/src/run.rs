//! A node's life: start everything, wait for a signal, stop everything within a bound.

use tokio::signal::unix::{SignalKind, signal};

use crate::config::Config;
use crate::wiring::{Node, StartError};

/// Runs a node until SIGTERM or SIGINT.
///
/// # Errors
/// When something that the configuration asks for cannot be started; nothing is left running then.
pub fn run(config: &Config) -> Result<(), StartError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| StartError::System { what: "wait for signals", source })?;
    // Before anything is started, so that a signal during the start is not lost.
    let (mut terminate, mut interrupt) = {
        let _inside = runtime.enter();
        let listen = |kind| {
            signal(kind).map_err(|source| StartError::System { what: "wait for signals", source })
        };
        (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?)
    };
    let node = Node::start(config)?;
    tracing::info!(node = config.name, control = ?config.control, "ready");
    let signal = runtime.block_on(async {
        tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        }
    });
    tracing::info!(signal, "stopping: guests' requests are drained, attachments are closed");
    node.stop();
    tracing::info!("stopped");
    Ok(())
}
