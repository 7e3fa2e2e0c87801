//! Imported memory: of another process, or of another API.

use crate::abi::{Code, DevicePointer, Handle, InParam, OutParam, Outcome, plain};
use crate::entry::exports;
use crate::oracle::{EndReason, MemoryKind};
use crate::state;

exports! {
    call cuIpcGetMemHandle(handle: OutParam<[u8; 64]>, dptr: DevicePointer) = get_handle;
    alloc cuIpcOpenMemHandle(dptr: OutParam<DevicePointer>, handle: IpcHandle, flags: u32) = open;
    alloc cuIpcOpenMemHandle_v2(dptr: OutParam<DevicePointer>, handle: IpcHandle, flags: u32) = open;
    free cuIpcCloseMemHandle(dptr: DevicePointer) = close;
    call cuMemPoolExportPointer(data: OutParam<[u8; 64]>, dptr: DevicePointer) = export_pointer;
    alloc cuMemPoolImportPointer(dptr: OutParam<DevicePointer>, pool: Handle, data: InParam<IpcHandle>) =
        import_pointer;
    call cuImportExternalMemory(memory: OutParam<Handle>, descriptor: InParam<ExternalDescriptor>) =
        import;
    alloc cuExternalMemoryGetMappedBuffer(dptr: OutParam<DevicePointer>, memory: Handle,
        descriptor: InParam<BufferDescriptor>) = map_buffer;
    call cuDestroyExternalMemory(memory: Handle) = destroy;
}

const MAGIC: [u8; 8] = *b"VSIMIPC1";

/// `CUipcMemHandle`, which is passed by value and therefore on the stack.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct IpcHandle {
    bytes: [u8; 64],
}
plain!(IpcHandle);

/// The content of an IPC handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct IpcTicket {
    process: u64,
    address: u64,
    bytes: u64,
}

impl IpcTicket {
    fn to_bytes(self) -> [u8; 64] {
        let mut handle = [0_u8; 64];
        handle[..8].copy_from_slice(&MAGIC);
        handle[8..16].copy_from_slice(&self.process.to_le_bytes());
        handle[16..24].copy_from_slice(&self.address.to_le_bytes());
        handle[24..32].copy_from_slice(&self.bytes.to_le_bytes());
        handle
    }

    fn from_bytes(handle: &[u8; 64]) -> Option<Self> {
        let number = |at: usize| Some(u64::from_le_bytes(handle.get(at..at + 8)?.try_into().ok()?));
        if handle.get(..8)? != MAGIC {
            return None;
        }
        Some(Self { process: number(8)?, address: number(16)?, bytes: number(24)? })
    }
}

/// Memory of another process that is open in this one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IpcImport {
    ticket: IpcTicket,
    references: u32,
}

fn get_handle(handle: OutParam<[u8; 64]>, dptr: DevicePointer) -> Outcome {
    export_of_kind(handle, dptr, MemoryKind::Device)
}

fn export_pointer(data: OutParam<[u8; 64]>, dptr: DevicePointer) -> Outcome {
    export_of_kind(data, dptr, MemoryKind::Async)
}

fn export_of_kind(handle: OutParam<[u8; 64]>, dptr: DevicePointer, kind: MemoryKind) -> Outcome {
    let state = state::running()?;
    state.current()?;
    let (address, record) = state.arena.containing(dptr).ok_or(Code::InvalidValue)?;
    if state.owner(record.owner)?.kind != kind {
        return Err(Code::InvalidValue);
    }
    let process = u64::from(std::process::id());
    handle.set(IpcTicket { process, address, bytes: record.bytes }.to_bytes())
}

fn open(dptr: OutParam<DevicePointer>, handle: IpcHandle, flags: u32) -> Outcome {
    dptr.check()?;
    let mut state = state::running()?;
    let owner = state.current()?.imported_owner;
    // Lazy peer access (1) is the only flag.
    if flags != 1 {
        return Err(Code::InvalidValue);
    }
    let ticket = IpcTicket::from_bytes(&handle.bytes).ok_or(Code::InvalidValue)?;
    if ticket.process == u64::from(std::process::id()) {
        return Err(Code::InvalidContext);
    }
    if !std::path::Path::new(&format!("/proc/{}", ticket.process)).exists() {
        return Err(Code::InvalidHandle);
    }
    let known = state.ipc.iter_mut().find(|(_, import)| import.ticket == ticket);
    if let Some((address, import)) = known {
        import.references += 1;
        let address = *address;
        state.oracle.allocations += 1;
        return dptr.set(address);
    }
    let address = state.open_at_address(owner, ticket.bytes)?;
    state.ipc.insert(address, IpcImport { ticket, references: 1 });
    dptr.set(address)
}

/// A pool of any process is accepted, also one that was not imported.
fn import_pointer(
    dptr: OutParam<DevicePointer>,
    pool: Handle,
    data: InParam<IpcHandle>,
) -> Outcome {
    dptr.check()?;
    let mut state = state::running()?;
    let owner = state.current()?.imported_owner;
    state.pools.pools.find(pool).ok_or(Code::InvalidValue)?;
    let ticket = IpcTicket::from_bytes(&data.get()?.bytes).ok_or(Code::InvalidValue)?;
    dptr.set(state.open_at_address(owner, ticket.bytes)?)
}

fn close(dptr: DevicePointer) -> Outcome {
    let mut state = state::running()?;
    let import = state.ipc.get_mut(&dptr).ok_or(Code::InvalidValue)?;
    import.references -= 1;
    if import.references == 0 {
        state.ipc.remove(&dptr);
        state.close_at_address(dptr, EndReason::Freed);
    } else {
        state.oracle.frees += 1;
    }
    Ok(())
}

/// The used fields of `CUDA_EXTERNAL_MEMORY_HANDLE_DESC`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ExternalDescriptor {
    handle_type: u32,
    handle: [u64; 2],
    bytes: u64,
    flags: u32,
}
plain!(ExternalDescriptor);

/// The used fields of `CUDA_EXTERNAL_MEMORY_BUFFER_DESC`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct BufferDescriptor {
    offset: u64,
    bytes: u64,
    flags: u32,
}
plain!(BufferDescriptor);

/// Memory of another API.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExternalMemory {
    bytes: u64,
    /// A file descriptor that the driver owns since the import.
    descriptor: Option<i32>,
}

/// `CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD`.
const FILE_DESCRIPTOR: u32 = 1;

fn import(memory: OutParam<Handle>, descriptor: InParam<ExternalDescriptor>) -> Outcome {
    memory.check()?;
    let descriptor = descriptor.get()?;
    let mut state = state::running()?;
    state.current()?;
    if descriptor.bytes == 0 || !(1..=8).contains(&descriptor.handle_type) {
        return Err(Code::InvalidValue);
    }
    let file = if descriptor.handle_type == FILE_DESCRIPTOR {
        let number = descriptor.handle[0] & u64::from(u32::MAX);
        Some(i32::try_from(number).map_err(|_| Code::InvalidValue)?)
    } else {
        None
    };
    let key = state.externals.insert(ExternalMemory { bytes: descriptor.bytes, descriptor: file });
    memory.set(state.externals.handle(key.index))
}

fn map_buffer(
    dptr: OutParam<DevicePointer>,
    memory: Handle,
    descriptor: InParam<BufferDescriptor>,
) -> Outcome {
    dptr.check()?;
    let BufferDescriptor { offset, bytes, flags } = descriptor.get()?;
    let mut state = state::running()?;
    let owner = state.current()?.imported_owner;
    let key = state.externals.find(memory).ok_or(Code::InvalidHandle)?;
    let size = state.externals.get(key.index).map_or(0, |external| external.bytes);
    if flags != 0 || bytes == 0 || offset.checked_add(bytes).is_none_or(|end| end > size) {
        return Err(Code::InvalidValue);
    }
    let address = state.open_at_address(owner, bytes)?;
    dptr.set(address)
}

fn destroy(memory: Handle) -> Outcome {
    let mut state = state::running()?;
    let key = state.externals.find(memory).ok_or(Code::InvalidHandle)?;
    let external = state.externals.remove(key.index).ok_or(Code::InvalidHandle)?;
    if let Some(descriptor) = external.descriptor {
        // SAFETY: the program transferred this descriptor when it imported the memory.
        unsafe { libc::close(descriptor) };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipc_handle_identifies_memory() {
        let ticket = IpcTicket { process: 42, address: 0x7f00_0000_0000, bytes: 8 << 20 };
        assert_eq!(IpcTicket::from_bytes(&ticket.to_bytes()), Some(ticket));
        assert_eq!(IpcTicket::from_bytes(&[0; 64]), None);
    }
}
