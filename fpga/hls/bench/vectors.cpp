// Runs the vectors of a kernel in C simulation: `bench <file.vec> [seed]`. With a seed, packets are
// delivered in the order of that seed (flashmesh/beat.hpp); without, in their own.
//
// tests/vectors/README.md describes the file. What differs is printed with case, argument and
// element; the exit status is 1 then, and 2 where the file itself is wrong.
#include "vectors.hpp"

#include <flashmesh/beat.hpp>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <map>
#include <memory>
#include <new>
#include <sstream>

namespace {

// What flashmesh aligns arrays to.
constexpr std::size_t ALIGNMENT = 64;
// Fills arrays before a kernel writes them, so that what it leaves out shows.
constexpr unsigned char UNWRITTEN = 0xa5;
// Differences that are printed of one array.
constexpr unsigned SHOWN = 4;

using bytes = std::vector<unsigned char>;

// An aligned array that ends with its last byte: AddressSanitizer sees an access behind it.
class array {
public:
    explicit array(const bytes &content) : size_(content.size())
    {
        void *start = nullptr;
        if (posix_memalign(&start, ALIGNMENT, size_) != 0) {
            throw std::bad_alloc();
        }
        start_.reset(static_cast<unsigned char *>(start));
        if (size_ != 0) {
            std::memcpy(start, content.data(), size_);
        }
    }

    unsigned char *data() const { return start_.get(); }
    std::size_t size() const { return size_; }

private:
    struct release {
        void operator()(unsigned char *start) const { std::free(start); }
    };
    std::unique_ptr<unsigned char, release> start_;
    std::size_t size_;
};

std::size_t element_bytes(const std::string &type)
{
    if (type == "u8" || type == "i8") {
        return 1;
    }
    if (type == "u16" || type == "i16") {
        return 2;
    }
    if (type == "u32" || type == "i32" || type == "f32") {
        return 4;
    }
    if (type == "u64" || type == "i64" || type == "f64") {
        return 8;
    }
    throw std::runtime_error("type '" + type + "' is unknown");
}

unsigned hex_digit(char c)
{
    if (c >= '0' && c <= '9') {
        return static_cast<unsigned>(c - '0');
    }
    if (c >= 'a' && c <= 'f') {
        return static_cast<unsigned>(c - 'a' + 10);
    }
    throw std::runtime_error("no hexadecimal digit");
}

// Pieces joined by '+': bytes in hexadecimal, or ~n for n zeros.
bytes from_hex(const std::string &text)
{
    bytes content;
    if (text == "-") {
        return content;
    }
    std::istringstream pieces(text);
    std::string piece;
    while (std::getline(pieces, piece, '+')) {
        if (piece[0] == '~') {
            content.resize(content.size() + std::stoull(piece.substr(1)));
            continue;
        }
        if (piece.size() % 2 != 0) {
            throw std::runtime_error("half a byte");
        }
        for (std::size_t at = 0; at < piece.size(); at += 2) {
            content.push_back(static_cast<unsigned char>(hex_digit(piece[at]) << 4 |
                                                         hex_digit(piece[at + 1])));
        }
    }
    return content;
}

// The bits of a scalar that is written as a decimal number.
uint64_t scalar_bits(const std::string &type, const std::string &text)
{
    uint64_t bits = 0;
    if (type == "f32") {
        const float value = std::stof(text);
        std::memcpy(&bits, &value, sizeof value);
    } else if (type == "f64") {
        const double value = std::stod(text);
        std::memcpy(&bits, &value, sizeof value);
    } else if (type[0] == 'u') {
        bits = std::stoull(text);
    } else {
        bits = static_cast<uint64_t>(std::stoll(text));
    }
    return bits;
}

// Whether an element is the expected one; floats within the tolerance, and all NaNs alike.
template <typename T>
bool is_near(const unsigned char *found, const unsigned char *expected, double tolerance)
{
    T a;
    T b;
    std::memcpy(&a, found, sizeof a);
    std::memcpy(&b, expected, sizeof b);
    if (std::isnan(a) || std::isnan(b)) {
        return std::isnan(a) && std::isnan(b);
    }
    if (tolerance == 0 || std::isinf(a) || std::isinf(b)) {
        return std::memcmp(found, expected, sizeof a) == 0;
    }
    return std::fabs(double{a} - double{b}) <= tolerance * std::fabs(double{b});
}

struct call {
    struct expectation {
        std::size_t argument;
        bytes content;
    };
    const bench::function *function = nullptr;
    std::vector<bench::argument> arguments;
    std::vector<expectation> expected;
};

class runner {
public:
    unsigned cases() const { return cases_; }
    bool passed() const { return differences_ == 0; }
    std::size_t line_number() const { return line_number_; }

    void run(std::istream &file)
    {
        std::string line;
        while (std::getline(file, line)) {
            ++line_number_;
            if (line_number_ == 1 && line != "# flashmesh vectors 1") {
                throw std::runtime_error("not '# flashmesh vectors 1'");
            }
            if (!line.empty() && line[0] != '#') {
                read(line);
            }
        }
        if (in_case_ || cases_ == 0) {
            throw std::runtime_error("the file ends early");
        }
    }

private:
    void read(const std::string &line)
    {
        std::istringstream words(line);
        std::string word;
        words >> word;
        if (word == "kernel") {
            return;
        }
        if (word == "tolerance") {
            words >> tolerance_;
        } else if (word == "case") {
            words >> case_;
            ++cases_;
            in_case_ = true;
        } else if (word == "call") {
            finish_call();
            words >> word;
            call_.function = find(word);
        } else if (word == "end") {
            finish_call();
            arrays_.clear();
            kept_.clear();
            in_case_ = false;
        } else {
            read_argument(word, words);
        }
        if (words.fail()) {
            throw std::runtime_error("the line ends early");
        }
    }

    static const bench::function *find(const std::string &name)
    {
        for (const bench::function &function : bench::functions) {
            if (name == function.name) {
                return &function;
            }
        }
        throw std::runtime_error("the kernel has no function '" + name + "'");
    }

    void read_argument(const std::string &use, std::istringstream &words)
    {
        bench::argument argument;
        std::string content;
        words >> argument.name >> argument.type >> content;
        const std::size_t size = element_bytes(argument.type);
        if (use == "scalar") {
            argument.is_scalar = true;
            argument.scalar = scalar_bits(argument.type, content);
        } else if (use == "in") {
            argument.array = add(from_hex(content));
        } else if (use == "out") {
            bytes expected = from_hex(content);
            argument.is_written = true;
            argument.array = add(bytes(expected.size(), UNWRITTEN));
            call_.expected.push_back({call_.arguments.size(), std::move(expected)});
        } else if (use == "inout") {
            argument.is_written = true;
            argument.array = add(from_hex(content));
            words >> content;
            call_.expected.push_back({call_.arguments.size(), from_hex(content)});
        } else if (use == "any") {
            argument.is_written = true;
            argument.array = add(bytes(size * std::stoull(content), UNWRITTEN));
        } else if (use == "keep") {
            // The same array in all calls of the case; its elements are the kernel's own matter.
            std::string name;
            words >> name;
            void *&kept = kept_[name];
            if (kept == nullptr) {
                kept = add(bytes(size * std::stoull(content), UNWRITTEN));
            }
            argument.array = kept;
        } else {
            throw std::runtime_error("'" + use + "' is unknown");
        }
        call_.arguments.push_back(std::move(argument));
    }

    void *add(const bytes &content)
    {
        arrays_.emplace_back(content);
        return arrays_.back().data();
    }

    void finish_call()
    {
        if (call_.function == nullptr) {
            return;
        }
        call_.function->call(call_.arguments);
        for (const call::expectation &expected : call_.expected) {
            compare(call_.arguments[expected.argument], expected.content);
        }
        call_ = call();
    }

    void compare(const bench::argument &argument, const bytes &expected)
    {
        const auto *found = static_cast<const unsigned char *>(argument.array);
        const std::size_t size = element_bytes(argument.type);
        unsigned shown = 0;
        for (std::size_t at = 0; at < expected.size(); at += size) {
            const bool is_same =
                argument.type == "f32"   ? is_near<float>(found + at, &expected[at], tolerance_)
                : argument.type == "f64" ? is_near<double>(found + at, &expected[at], tolerance_)
                                         : std::memcmp(found + at, &expected[at], size) == 0;
            if (is_same) {
                continue;
            }
            ++differences_;
            if (shown++ < SHOWN) {
                std::printf("case %s, %s: %s[%zu] is ", case_.c_str(), call_.function->name,
                            argument.name.c_str(), at / size);
                print(found + at, size);
                std::printf(", expected ");
                print(&expected[at], size);
                std::printf("\n");
            }
        }
    }

    // As a hexadecimal number, most significant digit first.
    static void print(const unsigned char *element, std::size_t size)
    {
        std::printf("0x");
        for (std::size_t byte = size; byte > 0; --byte) {
            std::printf("%02x", element[byte - 1]);
        }
    }

    std::size_t line_number_ = 0;
    unsigned cases_ = 0;
    unsigned differences_ = 0;
    double tolerance_ = 0;
    bool in_case_ = false;
    std::string case_;
    call call_;
    std::vector<array> arrays_;
    std::map<std::string, void *> kept_;
};

} // namespace

int main(int argument_count, char **arguments)
{
    if (argument_count != 2 && argument_count != 3) {
        std::fprintf(stderr, "usage: %s <file.vec> [seed]\n", arguments[0]);
        return 2;
    }
    if (argument_count == 3) {
        flashmesh::delivery_seed = static_cast<uint32_t>(std::stoul(arguments[2]));
    }
    std::ifstream file(arguments[1]);
    runner runner;
    try {
        if (!file) {
            throw std::runtime_error("can't be read");
        }
        runner.run(file);
    } catch (const std::exception &problem) {
        std::fprintf(stderr, "%s:%zu: %s\n", arguments[1], runner.line_number(), problem.what());
        return 2;
    }
    std::printf("%u cases %s", runner.cases(), runner.passed() ? "pass" : "run, some differ");
    if (flashmesh::delivery_seed != 0) {
        std::printf(", packets in the order of seed %u", flashmesh::delivery_seed);
    }
    std::printf("\n");
    return runner.passed() ? 0 : 1;
}
