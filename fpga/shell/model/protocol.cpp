#include "protocol.hpp"

#include <cerrno>
#include <cstring>
#include <sys/socket.h>

namespace flashmesh::model {

namespace {

// Takes from the front of `rest`.
uint64_t take_varint(std::string_view &rest)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        if (rest.empty())
            throw ProtocolError("a number is cut off");
        const auto byte = static_cast<uint8_t>(rest.front());
        rest.remove_prefix(1);
        value |= static_cast<uint64_t>(byte & 0x7f) << shift;
        if (byte < 0x80)
            return value;
    }
    throw ProtocolError("a number has more than ten bytes");
}

std::string_view take(std::string_view &rest, uint64_t count)
{
    if (count > rest.size())
        throw ProtocolError("a field of " + std::to_string(count) + " bytes, but " +
                            std::to_string(rest.size()) + " are left");
    const auto taken = rest.substr(0, count);
    rest.remove_prefix(count);
    return taken;
}

uint64_t little_endian(std::string_view bytes)
{
    uint64_t value = 0;
    for (size_t i = bytes.size(); i-- > 0;)
        value = value << 8 | static_cast<uint8_t>(bytes[i]);
    return value;
}

enum class Received { All, Closed };

// Receives exactly `count` bytes; the end of the stream is allowed before the first one only.
Received receive(int socket, char *target, size_t count)
{
    size_t done = 0;
    while (done < count) {
        const ssize_t got = recv(socket, target + done, count - done, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            if (done == 0)
                return Received::Closed;
            throw ProtocolError("the connection ended inside a request");
        }
        done += static_cast<size_t>(got);
    }
    return Received::All;
}

} // namespace

Message::Message(std::string_view rest)
{
    while (!rest.empty()) {
        const uint64_t key = take_varint(rest);
        if (key >> 3 == 0 || key >> 3 > 0x1fffffff)
            throw ProtocolError("field number " + std::to_string(key >> 3));
        Field field{static_cast<uint32_t>(key >> 3), false, 0, {}};
        switch (key & 7) {
        case 0: field.integer = take_varint(rest); break;
        case 1: field.integer = little_endian(take(rest, 8)); break;
        case 5: field.integer = little_endian(take(rest, 4)); break;
        case 2:
            field.is_bytes = true;
            field.bytes = take(rest, take_varint(rest));
            break;
        default: throw ProtocolError("wire type " + std::to_string(key & 7));
        }
        fields.push_back(field);
    }
}

std::optional<uint64_t> Message::integer(uint32_t number) const
{
    for (auto field = fields.rbegin(); field != fields.rend(); ++field)
        if (field->number == number && !field->is_bytes)
            return field->integer;
    return std::nullopt;
}

std::optional<std::string_view> Message::bytes(uint32_t number) const
{
    for (auto field = fields.rbegin(); field != fields.rend(); ++field)
        if (field->number == number && field->is_bytes)
            return field->bytes;
    return std::nullopt;
}

uint64_t Message::required_integer(uint32_t number, const char *what) const
{
    if (const auto value = integer(number))
        return *value;
    throw ProtocolError(std::string(what) + " without field " + std::to_string(number));
}

std::string_view Message::required_bytes(uint32_t number, const char *what) const
{
    if (const auto value = bytes(number))
        return *value;
    throw ProtocolError(std::string(what) + " without field " + std::to_string(number));
}

std::vector<std::string_view> Message::repeated(uint32_t number) const
{
    std::vector<std::string_view> found;
    for (const auto &field : fields)
        if (field.number == number && field.is_bytes)
            found.push_back(field.bytes);
    return found;
}

void Answer::varint(uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        buffer.push_back(static_cast<char>(value | 0x80));
    buffer.push_back(static_cast<char>(value));
}

Answer &Answer::integer(uint32_t field, uint64_t value)
{
    varint(static_cast<uint64_t>(field) << 3);
    varint(value);
    return *this;
}

Answer &Answer::bytes(uint32_t field, std::string_view value)
{
    varint(static_cast<uint64_t>(field) << 3 | 2);
    varint(value.size());
    buffer.append(value);
    return *this;
}

std::optional<Request> read_request(int socket)
{
    // call_packet_info: field 1, fixed64, the body's size; field 2, fixed32, the function.
    char header[14];
    if (receive(socket, header, sizeof header) == Received::Closed)
        return std::nullopt;
    const Message info(std::string_view(header, sizeof header));
    const uint64_t size = info.required_integer(1, "call_packet_info");
    if (size > max_frame_bytes)
        throw ProtocolError("a request of " + std::to_string(size) + " bytes");
    Request request{static_cast<Function>(info.required_integer(2, "call_packet_info")), {}};
    request.body.resize(size);
    if (size > 0 && receive(socket, request.body.data(), size) == Received::Closed)
        throw ProtocolError("the connection ended inside a request");
    return request;
}

bool write_answer(int socket, const Answer &answer)
{
    // response_packet_info: the size only; the runtime reads exactly nine bytes of it.
    const std::string &body = answer.encoded();
    std::string frame(1, '\x09');
    for (unsigned shift = 0; shift < 64; shift += 8)
        frame.push_back(static_cast<char>(static_cast<uint64_t>(body.size()) >> shift));
    frame.append(body);
    size_t done = 0;
    while (done < frame.size()) {
        const ssize_t sent = send(socket, frame.data() + done, frame.size() - done, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return false;
        done += static_cast<size_t>(sent);
    }
    return true;
}

} // namespace flashmesh::model
