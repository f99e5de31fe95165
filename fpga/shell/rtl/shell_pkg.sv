// Widths, commands and bursts of the flash interface.
//
// BlueDBM, section 3.1.1: a command has an operation, an address and a tag; data moves in bursts of
// 128 bits with the tag, those of reads out of order and interleaved; the card asks for the data of
// a write when it is ready for it, and acknowledges its end. The paper states no widths, and leaves
// the counting of a page's bursts to the user: `is_last` is ours.

`default_nettype none

package shell_pkg;
  localparam int TAG_BITS = 7;         // tags of a card: 128 commands in flight
  localparam int USER_TAG_BITS = 8;    // tags of a user: the host has 128 buffers each way
  localparam int ENDPOINT_BITS = 6;    // originating endpoints, Willow's HRE (section 2.6)
  localparam int PAGE_BITS = 26;       // of a card: 512 GB in pages of 8 KiB
  localparam int ERASE_BITS = 14;      // 2^14 pages: a block of each chip; see extent_check
  localparam int DATA_BITS = 128;
  localparam int PAGE_WORDS = 512;     // bursts of a page: 8 KiB; a power of two

  // Operations.
  localparam int OPERATION_BITS = 2;
  localparam bit [1:0] READ = 2'd0;
  localparam bit [1:0] WRITE = 2'd1;
  localparam bit [1:0] ERASE = 2'd2;   // the block of a chip in which the page lies

  // How a command ended. A read that succeeded has no status but its last burst.
  localparam int STATUS_BITS = 2;
  localparam bit [1:0] DONE = 2'd0;
  localparam bit [1:0] FAILED = 2'd1;         // the chip did not program, or erase: a bad block
  localparam bit [1:0] REFUSED = 2'd2;        // the originating endpoint has no extent there
  localparam bit [1:0] OUT_OF_BOUNDS = 2'd3;  // the file handle has no such page

  // The page's number counts buses fastest, then chips, then pages of a block: neighbours are read
  // in parallel.
  typedef struct packed {
    logic [OPERATION_BITS-1:0] operation;
    logic [ENDPOINT_BITS-1:0]  endpoint;      // who is responsible for it
    logic [PAGE_BITS-1:0]      page;
  } command_t;

  localparam int COMMAND_BITS = OPERATION_BITS + ENDPOINT_BITS + PAGE_BITS;

  // A part of a page, of a read or a write.
  typedef struct packed {
    logic                 is_last;
    logic [DATA_BITS-1:0] data;
  } burst_t;

  localparam int BURST_BITS = 1 + DATA_BITS;

  // What an endpoint may do with the pages `first` to `last`.
  typedef struct packed {
    logic                     is_valid;
    logic                     may_write;      // and erase; reading goes without saying
    logic [ENDPOINT_BITS-1:0] endpoint;
    logic [PAGE_BITS-1:0]     first;
    logic [PAGE_BITS-1:0]     last;
  } extent_t;

  localparam int EXTENT_BITS = 2 + ENDPOINT_BITS + 2 * PAGE_BITS;

  // Files: see address_translation.
  localparam int HANDLE_BITS = 6;
  localparam int OFFSET_BITS = 24;     // of a page in its file
  localparam int SEGMENT_BITS = 8;     // 2^8 pages that lie together: 2 MiB
  localparam int NUMBER_BITS = PAGE_BITS - SEGMENT_BITS;

  // A part of a command to an accelerator slot: pages of a file, and what the kernel is told.
  // Minerva (section III-B) has sequence number, process, kernel's name, parameters and file
  // extents; here a slot is a kernel, and small requests share a command (section IV-A), each with
  // a result.
  localparam int SEQUENCE_BITS = 16;   // of commands
  localparam int PARAMETER_BITS = 64;
  localparam int RESULT_BITS = 64;
  localparam int AREA_BITS = 7;        // an endpoint's status area has 2^7 lines

  typedef struct packed {
    logic                      is_last;       // of its command
    logic [SEQUENCE_BITS-1:0]  sequence_number;
    logic [ENDPOINT_BITS-1:0]  endpoint;
    logic [AREA_BITS-1:0]      line;          // where its status goes, in the endpoint's area
    logic [HANDLE_BITS-1:0]    handle;
    logic [OFFSET_BITS-1:0]    offset;
    logic [OFFSET_BITS-1:0]    length;        // pages
    logic [PARAMETER_BITS-1:0] parameter_word;
  } work_t;

  localparam int WORK_BITS = 1 + SEQUENCE_BITS + ENDPOINT_BITS + AREA_BITS + HANDLE_BITS +
                             2 * OFFSET_BITS + PARAMETER_BITS;

  // A line of a status area.
  typedef struct packed {
    logic [SEQUENCE_BITS-1:0]  sequence_number;
    logic [STATUS_BITS-1:0]    status;        // of the first page that was not read, or DONE
    logic [RESULT_BITS-1:0]    result;        // of the kernel, over the pages that were
  } outcome_t;

  localparam int OUTCOME_BITS = SEQUENCE_BITS + STATUS_BITS + RESULT_BITS;

  // Streams of HLS kernels: AXI-Stream beats of 512 bits, with a tag (TID) and bytes that count
  // (TKEEP); see fpga/hls/include/flashmesh/beat.hpp.
  localparam int BEAT_BYTES = 64;
  localparam int BEAT_BITS = 8 * BEAT_BYTES;
  localparam int KERNEL_TAG_BITS = 32;
  // The tag of a page that was not read, and of what a kernel makes of it: no page has it.
  localparam bit [KERNEL_TAG_BITS-1:0] NO_PAGE = '1;

  // A word of what a kernel finds, with the tag of its packet.
  localparam int COUNT_BITS = 5;
  typedef struct packed {
    logic                       is_last;      // of its packet
    logic [COUNT_BITS-1:0]      bytes;        // that count, from the lowest on
    logic [KERNEL_TAG_BITS-1:0] tag;
    logic [DATA_BITS-1:0]       data;
  } found_t;

  localparam int FOUND_BITS = 1 + COUNT_BITS + KERNEL_TAG_BITS + DATA_BITS;
endpackage

`default_nettype wire
