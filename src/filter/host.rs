//! Every call to the host, wrapped once: bytes in, bytes out, and any status the host may answer
//! becomes `None` or an error.
//!
//! The SDK's own wrappers panic on statuses they do not expect and on values that are not UTF-8;
//! one panic would end every stream of an Envoy worker. The functions are those of the proxy-wasm
//! ABI 0.2.1.
#![allow(unsafe_code)]

use std::ptr::null_mut;
use std::time::Duration;

use proxy_wasm::hostcalls::dispatch_http_call;

use crate::metrics::{Meter, MetricKind};
use crate::state::{Store, StoreError, Version};
use crate::steer::{filter_state_argument, header_map};
use crate::worker::{Buffer, Headers, Host};

const OK: u32 = 0;
const CAS_MISMATCH: u32 = 8;

#[link(wasm_import_module = "env")]
unsafe extern "C" {
    fn proxy_get_current_time_nanoseconds(time: *mut u64) -> u32;
    fn proxy_set_tick_period_milliseconds(period: u32) -> u32;
    fn proxy_get_buffer_bytes(
        kind: u32,
        start: usize,
        length: usize,
        data: *mut *mut u8,
        size: *mut usize,
    ) -> u32;
    fn proxy_get_header_map_value(
        map: u32,
        key: *const u8,
        key_size: usize,
        data: *mut *mut u8,
        size: *mut usize,
    ) -> u32;
    fn proxy_replace_header_map_value(
        map: u32,
        key: *const u8,
        key_size: usize,
        value: *const u8,
        value_size: usize,
    ) -> u32;
    fn proxy_remove_header_map_value(map: u32, key: *const u8, key_size: usize) -> u32;
    fn proxy_get_property(
        path: *const u8,
        path_size: usize,
        data: *mut *mut u8,
        size: *mut usize,
    ) -> u32;
    fn proxy_set_property(
        path: *const u8,
        path_size: usize,
        value: *const u8,
        value_size: usize,
    ) -> u32;
    fn proxy_get_shared_data(
        key: *const u8,
        key_size: usize,
        data: *mut *mut u8,
        size: *mut usize,
        version: *mut u32,
    ) -> u32;
    fn proxy_set_shared_data(
        key: *const u8,
        key_size: usize,
        value: *const u8,
        value_size: usize,
        version: u32,
    ) -> u32;
    fn proxy_define_metric(kind: u32, name: *const u8, name_size: usize, id: *mut u32) -> u32;
    fn proxy_increment_metric(id: u32, offset: i64) -> u32;
    fn proxy_record_metric(id: u32, value: u64) -> u32;
    fn proxy_send_local_response(
        status: u32,
        details: *const u8,
        details_size: usize,
        body: *const u8,
        body_size: usize,
        headers: *const u8,
        headers_size: usize,
        grpc_status: i32,
    ) -> u32;
    fn proxy_continue_stream(stream: u32) -> u32;
    fn proxy_set_effective_context(context: u32) -> u32;
    fn proxy_call_foreign_function(
        name: *const u8,
        name_size: usize,
        argument: *const u8,
        argument_size: usize,
        data: *mut *mut u8,
        size: *mut usize,
    ) -> u32;
}

/// Envoy, through the proxy-wasm ABI.
#[derive(Clone, Copy)]
pub(super) struct Envoy;

fn buffer_number(kind: Buffer) -> u32 {
    match kind {
        Buffer::RequestBody => 0,
        Buffer::ResponseBody => 1,
        Buffer::CalloutBody => 4,
        Buffer::PluginConfiguration => 7,
    }
}

fn map_number(map: Headers) -> u32 {
    match map {
        Headers::Request => 0,
        Headers::Response => 2,
        Headers::Callout => 6,
    }
}

/// Calls a host function that hands out memory, and takes the memory over.
fn received(call: impl FnOnce(*mut *mut u8, *mut usize) -> u32) -> Option<Vec<u8>> {
    let mut data: *mut u8 = null_mut();
    let mut size = 0_usize;
    if call(&raw mut data, &raw mut size) != OK {
        return None;
    }
    if data.is_null() {
        return Some(Vec::new());
    }
    // SAFETY: the host got this memory from the SDK's `proxy_on_memory_allocate`, which leaks a
    // boxed slice of exactly `size` bytes for the callee to own, and filled all of it.
    Some(unsafe { Vec::from_raw_parts(data, size, size) })
}

/// Asks for `on_tick` every so often.
pub(super) fn set_tick_period_ms(period_ms: u32) {
    // SAFETY: plain value.
    unsafe { proxy_set_tick_period_milliseconds(period_ms) };
}

impl Host for Envoy {
    fn now_ns(&self) -> u64 {
        let mut time = 0;
        // SAFETY: the host writes one u64.
        unsafe { proxy_get_current_time_nanoseconds(&raw mut time) };
        time
    }

    fn error(&self, line: &str) {
        log::error!("{line}");
    }

    fn info(&self, line: &str) {
        log::info!("{line}");
    }

    fn buffer(&self, kind: Buffer, start: usize, length: usize) -> Option<Vec<u8>> {
        let kind = buffer_number(kind);
        // SAFETY: the out pointers are valid for the call.
        received(|data, size| unsafe { proxy_get_buffer_bytes(kind, start, length, data, size) })
    }

    fn header(&self, map: Headers, name: &str) -> Option<Vec<u8>> {
        let map = map_number(map);
        // SAFETY: `name` outlives the call; the out pointers are valid for it.
        let value = received(|data, size| unsafe {
            proxy_get_header_map_value(map, name.as_ptr(), name.len(), data, size)
        });
        value.filter(|value| !value.is_empty())
    }

    fn set_header(&self, map: Headers, name: &str, value: &str) -> bool {
        // SAFETY: both slices outlive the call.
        let status = unsafe {
            proxy_replace_header_map_value(
                map_number(map),
                name.as_ptr(),
                name.len(),
                value.as_ptr(),
                value.len(),
            )
        };
        status == OK
    }

    fn remove_header(&self, map: Headers, name: &str) {
        // SAFETY: `name` outlives the call.
        unsafe { proxy_remove_header_map_value(map_number(map), name.as_ptr(), name.len()) };
    }

    fn property(&self, path: &str) -> Option<Vec<u8>> {
        // SAFETY: `path` outlives the call; the out pointers are valid for it.
        received(|data, size| unsafe { proxy_get_property(path.as_ptr(), path.len(), data, size) })
    }

    fn set_property(&self, path: &str, value: &str) {
        // SAFETY: both slices outlive the call.
        unsafe { proxy_set_property(path.as_ptr(), path.len(), value.as_ptr(), value.len()) };
    }

    fn set_filter_state(&self, path: &str, value: &str) -> bool {
        const FUNCTION: &str = "set_envoy_filter_state";
        let Some(argument) = filter_state_argument(path, value) else {
            return false;
        };
        // SAFETY: all slices outlive the call; the out pointers are valid for it.
        let answer = received(|data, size| unsafe {
            let argument = argument.as_slice();
            proxy_call_foreign_function(
                FUNCTION.as_ptr(),
                FUNCTION.len(),
                argument.as_ptr(),
                argument.len(),
                data,
                size,
            )
        });
        answer.is_some()
    }

    fn reply(&self, status: u16, details: &str, headers: &[(&str, &str)], body: &str) {
        const NO_GRPC_STATUS: i32 = -1;
        let headers = header_map(headers);
        // SAFETY: all slices outlive the call.
        unsafe {
            proxy_send_local_response(
                u32::from(status),
                details.as_ptr(),
                details.len(),
                body.as_ptr(),
                body.len(),
                headers.as_ptr(),
                headers.len(),
                NO_GRPC_STATUS,
            )
        };
    }

    fn resume_request(&self) {
        // SAFETY: plain value.
        unsafe { proxy_continue_stream(0) };
    }

    fn set_effective_context(&self, context: u32) -> bool {
        // SAFETY: plain value.
        unsafe { proxy_set_effective_context(context) == OK }
    }

    /// The one call that goes through the SDK, which must know of the answers to come.
    fn ask(
        &self,
        cluster: &str,
        headers: Vec<(&str, &str)>,
        timeout_ms: u64,
    ) -> Result<u32, String> {
        let timeout = Duration::from_millis(timeout_ms);
        dispatch_http_call(cluster, headers, None, vec![], timeout)
            .map_err(|status| format!("{status:?}"))
    }
}

impl Meter for Envoy {
    fn define(&self, kind: MetricKind, name: &str) -> Option<u32> {
        let kind = match kind {
            MetricKind::Counter => 0,
            MetricKind::Gauge => 1,
            MetricKind::Histogram => 2,
        };
        let mut id = 0;
        // SAFETY: `name` outlives the call; the host writes one u32.
        let status = unsafe { proxy_define_metric(kind, name.as_ptr(), name.len(), &raw mut id) };
        (status == OK).then_some(id)
    }

    fn increment(&self, id: u32, by: u64) {
        // SAFETY: plain values.
        unsafe { proxy_increment_metric(id, i64::try_from(by).unwrap_or(i64::MAX)) };
    }

    fn record(&self, id: u32, value: u64) {
        // SAFETY: plain values.
        unsafe { proxy_record_metric(id, value) };
    }
}

impl Envoy {
    /// Writes shared data. A version of 0 means "whatever stands there".
    fn set(key: &str, value: &[u8], version: u32) -> Result<(), StoreError> {
        // SAFETY: both slices outlive the call.
        match unsafe {
            proxy_set_shared_data(
                key.as_ptr(),
                key.len(),
                value.as_ptr(),
                value.len(),
                version,
            )
        } {
            OK => Ok(()),
            CAS_MISMATCH => Err(StoreError::Conflict),
            _ => Err(StoreError::Unavailable),
        }
    }
}

impl Store for Envoy {
    fn get(&self, key: &str) -> Option<(Vec<u8>, Version)> {
        let mut version = 0;
        // SAFETY: `key` outlives the call; the out pointers are valid for it.
        let value = received(|data, size| unsafe {
            proxy_get_shared_data(key.as_ptr(), key.len(), data, size, &raw mut version)
        })?;
        Some((value, Version(version)))
    }

    fn replace(&self, key: &str, value: &[u8], expected: Version) -> Result<(), StoreError> {
        Self::set(key, value, expected.0)
    }

    fn put(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        Self::set(key, value, 0)
    }
}
