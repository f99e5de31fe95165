//! Memory that the process of the database and the process of the runtime share, and the socket
//! between the two.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

/// Longest message in bytes: a call with all its arguments is far below.
pub(super) const MAX_MESSAGE_BYTES: usize = 64 << 10;

/// Turns the result of a system call into an error.
fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    match result {
        -1 => Err(io::Error::last_os_error()),
        value => Ok(value),
    }
}

/// Shared memory of a fixed size, aligned to pages of 4,096 bytes.
#[derive(Debug)]
pub(super) struct SharedMemory {
    pointer: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is plain memory; who reads and writes it when is said by the calls that use it.
unsafe impl Send for SharedMemory {}
// SAFETY: as above; `write` and `read` ask for `&mut self`.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// New memory, and the file that another process maps it from.
    pub(super) fn create(bytes: usize) -> io::Result<(Self, OwnedFd)> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name ends with a zero.
        let file = checked(unsafe { libc::memfd_create(c"flashmesh-xrt".as_ptr(), flags) })?;
        // SAFETY: the descriptor is new and nobody else's.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        // SAFETY: the descriptor is open.
        checked(unsafe { libc::ftruncate(file.as_raw_fd(), bytes as libc::off_t) })?;
        // A file that can't shrink is memory that can't vanish under a reader.
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: the descriptor is open.
        checked(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) })?;
        Ok((Self::map(file.as_fd(), bytes)?, file))
    }

    /// Maps memory that the other process has created.
    pub(super) fn map(file: BorrowedFd<'_>, bytes: usize) -> io::Result<Self> {
        // SAFETY: an all-zero stat is valid, and fstat fills it.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the descriptor is open.
        checked(unsafe { libc::fstat(file.as_raw_fd(), &mut status) })?;
        if bytes == 0 || status.st_size != bytes as libc::off_t {
            return Err(io::Error::other(
                "shared memory of another size than agreed",
            ));
        }
        // SAFETY: a new mapping of a file of that size.
        let pointer = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if pointer == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let pointer = NonNull::new(pointer.cast()).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { pointer, bytes })
    }

    /// Its size in bytes.
    pub(super) fn len(&self) -> usize {
        self.bytes
    }

    /// Where it begins.
    pub(super) fn as_mut_ptr(&self) -> *mut u8 {
        self.pointer.as_ptr()
    }

    /// Copies `bytes` to its front. They must not be more than it holds.
    pub(super) fn write(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.bytes);
        // SAFETY: the ranges are as long and do not overlap; the other process does not touch the
        // memory while no call uses it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.as_mut_ptr(), bytes.len()) };
    }

    /// Clears what is behind its first `bytes`.
    pub(super) fn clear_behind(&mut self, bytes: usize) {
        let rest = self.bytes.saturating_sub(bytes);
        // SAFETY: the range is within the mapping; otherwise as in `write`.
        unsafe { std::ptr::write_bytes(self.as_mut_ptr().add(self.bytes - rest), 0, rest) };
    }

    /// Copies its front to `bytes`, which must not be more than it holds.
    pub(super) fn read(&mut self, bytes: &mut [u8]) {
        assert!(bytes.len() <= self.bytes);
        // SAFETY: as in `write`.
        unsafe {
            std::ptr::copy_nonoverlapping(self.as_mut_ptr(), bytes.as_mut_ptr(), bytes.len());
        }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own.
        unsafe { libc::munmap(self.as_mut_ptr().cast(), self.bytes) };
    }
}

/// One end of a socket that keeps messages apart and carries descriptors.
#[derive(Debug)]
pub(super) struct Connection {
    socket: OwnedFd,
}

/// A received message.
#[derive(Debug)]
pub(super) struct Received {
    pub bytes: Vec<u8>,
    pub descriptor: Option<OwnedFd>,
}

/// Room for one descriptor in a control message, aligned as its header.
#[repr(C, align(8))]
struct Control([u8; 64]);

impl Connection {
    /// Two connected ends; the second one is for the other process.
    pub(super) fn pair() -> io::Result<(Self, OwnedFd)> {
        let mut ends = [0; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: there is room for two descriptors.
        checked(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) })?;
        // SAFETY: both are new and nobody else's.
        let [ours, theirs] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
        let connection = Self::of(ours);
        // The other side only queues what it receives; one that takes nothing is dead.
        let limit = libc::timeval {
            tv_sec: 10,
            tv_usec: 0,
        };
        // SAFETY: the option's value is a timeval.
        checked(unsafe {
            libc::setsockopt(
                connection.socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_SNDTIMEO,
                (&raw const limit).cast(),
                size_of_val(&limit) as libc::socklen_t,
            )
        })?;
        Ok((connection, theirs))
    }

    pub(super) fn of(socket: OwnedFd) -> Self {
        Self { socket }
    }

    /// Sends a message whole.
    pub(super) fn send(&self, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        if bytes.is_empty() || bytes.len() > MAX_MESSAGE_BYTES {
            return Err(io::Error::other("a message of a size that can't be"));
        }
        let mut part = libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        let mut control = Control([0; 64]);
        // SAFETY: an all-zero msghdr is valid.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        if let Some(descriptor) = descriptor {
            let size = size_of::<libc::c_int>() as libc::c_uint;
            message.msg_control = (&raw mut control).cast();
            // SAFETY: it only computes.
            message.msg_controllen = unsafe { libc::CMSG_SPACE(size) } as _;
            // SAFETY: the control buffer has room for one header with one descriptor.
            unsafe {
                let header = libc::CMSG_FIRSTHDR(&raw const message);
                (*header).cmsg_level = libc::SOL_SOCKET;
                (*header).cmsg_type = libc::SCM_RIGHTS;
                (*header).cmsg_len = libc::CMSG_LEN(size) as _;
                let data = libc::CMSG_DATA(header).cast::<libc::c_int>();
                data.write_unaligned(descriptor.as_raw_fd());
            }
        }
        loop {
            // SAFETY: the message points to what lives here.
            let sent = unsafe {
                libc::sendmsg(
                    self.socket.as_raw_fd(),
                    &raw const message,
                    libc::MSG_NOSIGNAL,
                )
            };
            match sent {
                -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
                -1 => return Err(io::Error::last_os_error()),
                _ => return Ok(()),
            }
        }
    }

    /// Waits for the next message; `None` when the other side has ended.
    pub(super) fn receive(&self) -> io::Result<Option<Received>> {
        let mut bytes = vec![0; MAX_MESSAGE_BYTES];
        let mut part = libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        };
        let mut control = Control([0; 64]);
        // SAFETY: an all-zero msghdr is valid.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = size_of::<Control>() as _;
        let length = loop {
            // SAFETY: the message points to what lives here.
            let got = unsafe {
                libc::recvmsg(
                    self.socket.as_raw_fd(),
                    &raw mut message,
                    libc::MSG_CMSG_CLOEXEC,
                )
            };
            match got {
                -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
                -1 => return Err(io::Error::last_os_error()),
                got => break got as usize,
            }
        };
        let mut descriptor = None;
        // SAFETY: the kernel has filled the control buffer; a descriptor in it is ours now.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            if !header.is_null()
                && (*header).cmsg_level == libc::SOL_SOCKET
                && (*header).cmsg_type == libc::SCM_RIGHTS
            {
                let data = libc::CMSG_DATA(header).cast::<libc::c_int>();
                descriptor = Some(OwnedFd::from_raw_fd(data.read_unaligned()));
            }
        }
        if message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
            return Err(io::Error::other("a message that is too long"));
        }
        bytes.truncate(length);
        // Empty messages are not sent, so that nothing is the end.
        Ok((length > 0).then_some(Received { bytes, descriptor }))
    }

    /// Tells the other side that no message follows.
    pub(super) fn close_sending(&self) {
        // SAFETY: the descriptor is open.
        unsafe { libc::shutdown(self.socket.as_raw_fd(), libc::SHUT_WR) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_crosses_the_socket() {
        let (ours, theirs) = Connection::pair().unwrap();
        let theirs = Connection::of(theirs);
        let (mut memory, file) = SharedMemory::create(8192).unwrap();
        memory.write(b"flash");
        ours.send(b"map this", Some(file.as_fd())).unwrap();
        ours.send(b"and this", None).unwrap();
        let received = theirs.receive().unwrap().unwrap();
        assert_eq!(received.bytes, b"map this");
        let file = received.descriptor.unwrap();
        assert!(SharedMemory::map(file.as_fd(), 4096).is_err());
        let mut there = SharedMemory::map(file.as_fd(), 8192).unwrap();
        let mut bytes = [0; 5];
        there.read(&mut bytes);
        assert_eq!(&bytes, b"flash");
        assert!(theirs.receive().unwrap().unwrap().descriptor.is_none());
        assert!(ours.send(&vec![0; MAX_MESSAGE_BYTES + 1], None).is_err());
        ours.close_sending();
        assert!(theirs.receive().unwrap().is_none());
    }
}
