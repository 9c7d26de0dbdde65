//! LoRA adapters, which vLLM loads and unloads while it runs (`VLLM_ALLOW_RUNTIME_LORA_UPDATING`).

use super::engine::lock;
use super::error::ApiError;
use serde_json::Value;
use std::sync::Mutex;

/// The adapters that are loaded.
#[derive(Debug, Default)]
pub struct Loaded {
    names: Mutex<Vec<String>>,
    max_loras: Option<u32>,
}

impl Loaded {
    /// `max_loras` is how many fit into one batch; `None` for all that are loaded.
    pub fn new(names: Vec<String>, max_loras: Option<u32>) -> Self {
        Self {
            names: Mutex::new(names),
            max_loras,
        }
    }

    pub fn names(&self) -> Vec<String> {
        lock(&self.names).clone()
    }

    pub fn serves(&self, name: &str) -> bool {
        lock(&self.names).iter().any(|loaded| loaded == name)
    }

    /// Whether the replica was set up for adapters.
    pub fn is_enabled(&self) -> bool {
        self.max_loras.is_some() || !lock(&self.names).is_empty()
    }

    pub fn max_loras(&self) -> u32 {
        let loaded = || u32::try_from(lock(&self.names).len()).unwrap_or(u32::MAX);
        self.max_loras.unwrap_or_else(loaded)
    }

    /// `POST /v1/load_lora_adapter`: what is answered.
    ///
    /// # Errors
    /// As vLLM has them.
    pub fn load(&self, body: &Value) -> Result<String, ApiError> {
        let (Some(name), Some(_)) = (text(body, "lora_name"), text(body, "lora_path")) else {
            let message = "Both 'lora_name' and 'lora_path' must be provided.";
            return Err(invalid(message.to_owned()));
        };
        let mut names = lock(&self.names);
        if names.contains(&name) {
            return Err(invalid(format!(
                "The lora adapter '{name}' has already been loaded. If you want to load the adapter \
                 in place, set 'load_inplace' to True."
            )));
        }
        let answer = format!("Success: LoRA adapter '{name}' added successfully.");
        names.push(name);
        Ok(answer)
    }

    /// `POST /v1/unload_lora_adapter`: what is answered.
    ///
    /// # Errors
    /// As vLLM has them.
    pub fn unload(&self, body: &Value) -> Result<String, ApiError> {
        let Some(name) = text(body, "lora_name") else {
            let message = "'lora_name' needs to be provided to unload a LoRA adapter.";
            return Err(invalid(message.to_owned()));
        };
        let mut names = lock(&self.names);
        let Some(place) = names.iter().position(|loaded| *loaded == name) else {
            return Err(ApiError {
                status: 404,
                kind: "NotFoundError",
                param: None,
                message: format!("The lora adapter '{name}' cannot be found."),
            });
        };
        names.remove(place);
        Ok(format!(
            "Success: LoRA adapter '{name}' removed successfully."
        ))
    }
}

fn text(body: &Value, field: &str) -> Option<String> {
    let text = body.get(field)?.as_str()?;
    (!text.is_empty()).then(|| text.to_owned())
}

fn invalid(message: String) -> ApiError {
    ApiError {
        status: 400,
        kind: "InvalidUserInput",
        param: None,
        message,
    }
}
