// Protocol Buffers' wire format, as much of it as XRT's emulation RPC uses, and the RPC's framing.
//
// Everything here comes from another process: every length is checked before it is used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace flashmesh::model {

// The other side broke the protocol; the text says how.
struct ProtocolError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Longest body of a frame: XRT cuts transfers into 8 MiB, its own headers come on top.
constexpr uint64_t max_frame_bytes = 64u << 20;

// Numbers of the RPC's functions (xcl_macros.h of XRT 2.13).
enum class Function : uint32_t {
    Close = 1,
    LoadBitstream = 3,
    AllocDeviceBuffer = 4,
    FreeDeviceBuffer = 5,
    CopyBufferHost2Device = 6,
    CopyBufferDevice2Host = 7,
    WriteAddrKernelCtrl = 9,
    ReadAddrKernelCtrl = 11,
    SetEnvironment = 20,
    SetupInstance = 28,
    RegWrite = 51,
    RegRead = 52,
};

// A decoded message: fields in the order of the wire, views into the frame.
class Message {
public:
    // Throws ProtocolError for what is not a message.
    explicit Message(std::string_view bytes);

    // The last value of an integer field, as the format demands of repeated scalars.
    std::optional<uint64_t> integer(uint32_t field) const;
    std::optional<std::string_view> bytes(uint32_t field) const;

    // The same for fields that must be there; `what` names the message in the error.
    uint64_t required_integer(uint32_t field, const char *what) const;
    std::string_view required_bytes(uint32_t field, const char *what) const;

    // All occurrences of a field of bytes or messages.
    std::vector<std::string_view> repeated(uint32_t field) const;

private:
    struct Field {
        uint32_t number;
        bool is_bytes;
        uint64_t integer;
        std::string_view bytes;
    };
    std::vector<Field> fields;
};

// Builds a message.
class Answer {
public:
    Answer &integer(uint32_t field, uint64_t value);
    Answer &bytes(uint32_t field, std::string_view value);
    const std::string &encoded() const { return buffer; }

private:
    void varint(uint64_t value);
    std::string buffer;
};

// One request of the runtime.
struct Request {
    Function function;
    std::string body;
};

// Reads a request; nothing when the runtime has closed the connection between two of them.
std::optional<Request> read_request(int socket);

// Sends an answer; FALSE when the runtime is gone.
bool write_answer(int socket, const Answer &answer);

} // namespace flashmesh::model
