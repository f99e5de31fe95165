// Runs commands on a kernel, one after the other, over pages of files.
//
// BlueDBM, section 4: accelerators are shared first come, first served. Minerva, sections III and
// IV-A: commands have file extents and parameters, small requests share a command, and loading
// overlaps computing. Here parts of commands go to the flash server as soon as that takes them, up
// to AHEAD before the one at which the kernel is: the server's page buffers are the double buffer.
//
// The kernel's side: a start with its parameter and the number of pages; a stream of words, each
// with its page's number in the part; what the kernel finds, as a stream that leaves with the
// part's endpoint and line; and, when there are no more words, its result. Pages that were refused
// or are out of bounds give no words, so numbers of pages skip them; the first one's status goes
// beside the result. kernel_adapter makes of it what an HLS kernel has.

`default_nettype none

module accelerator_slot #(
  parameter int AHEAD = 32           // parts; a power of two
) (
  input  wire  logic                                clk,
  input  wire  logic                                reset,

  input  wire  logic                                s_valid,
  output logic                                      s_ready,
  input  wire  shell_pkg::work_t                    s_work,

  // The flash server.
  output logic                                      server_valid,
  input  wire  logic                                server_ready,
  output logic [shell_pkg::ENDPOINT_BITS-1:0]       server_endpoint,
  output logic [shell_pkg::HANDLE_BITS-1:0]         server_handle,
  output logic [shell_pkg::OFFSET_BITS-1:0]         server_offset,
  output logic [shell_pkg::OFFSET_BITS-1:0]         server_length,
  input  wire  logic                                page_valid,
  output logic                                      page_ready,
  input  wire  logic [shell_pkg::DATA_BITS-1:0]     page_data,
  input  wire  logic                                page_is_last,
  input  wire  logic [shell_pkg::STATUS_BITS-1:0]   page_status,

  // The kernel.
  output logic                                      start_valid,
  input  wire  logic                                start_ready,
  output logic [shell_pkg::PARAMETER_BITS-1:0]      start_parameter,
  output logic [shell_pkg::OFFSET_BITS-1:0]         start_length,  // pages, those without words too
  output logic                                      word_valid,
  input  wire  logic                                word_ready,
  output logic [shell_pkg::DATA_BITS-1:0]           word,
  output logic [shell_pkg::OFFSET_BITS-1:0]         word_page,     // of the part
  output logic                                      word_is_last,  // of its page
  output logic                                      is_over,       // there are no more words
  input  wire  logic                                found_valid,
  output logic                                      found_ready,
  input  wire  shell_pkg::found_t                   found,
  input  wire  logic                                result_valid,  // when is_over
  output logic                                      result_ready,
  input  wire  logic [shell_pkg::RESULT_BITS-1:0]   result,

  // What was found, on its way to the host.
  output logic                                      out_valid,
  input  wire  logic                                out_ready,
  output logic [shell_pkg::ENDPOINT_BITS-1:0]       out_endpoint,
  output logic [shell_pkg::AREA_BITS-1:0]           out_line,
  output shell_pkg::found_t                         out,

  // The status block.
  output logic                                      m_valid,
  input  wire  logic                                m_ready,
  output logic [shell_pkg::ENDPOINT_BITS-1:0]       m_endpoint,
  output logic [shell_pkg::AREA_BITS-1:0]           m_line,
  output logic                                      m_is_last,     // of a command
  output shell_pkg::outcome_t                       m_outcome
);

  // What is kept of a part while the flash server reads for it.
  typedef struct packed {
    logic                                 is_last;
    logic [shell_pkg::SEQUENCE_BITS-1:0]  sequence_number;
    logic [shell_pkg::ENDPOINT_BITS-1:0]  endpoint;
    logic [shell_pkg::AREA_BITS-1:0]      line;
    logic [shell_pkg::OFFSET_BITS-1:0]    length;
    logic [shell_pkg::PARAMETER_BITS-1:0] parameter_word;
  } part_t;

  localparam int PART_BITS = 1 + shell_pkg::SEQUENCE_BITS + shell_pkg::ENDPOINT_BITS +
                             shell_pkg::AREA_BITS + shell_pkg::OFFSET_BITS +
                             shell_pkg::PARAMETER_BITS;

  logic                                has_place;
  logic                                has_part;
  logic                                is_done;
  part_t                               asked;
  part_t                               part;

  logic                                is_running;   // the kernel has started with the part
  logic [shell_pkg::OFFSET_BITS-1:0]   pages;        // of the part, that have ended
  logic [shell_pkg::STATUS_BITS-1:0]   status;
  logic                                is_read;      // a page with words

  assign server_valid = s_valid && has_place;
  assign s_ready = server_ready && has_place;
  assign server_endpoint = s_work.endpoint;
  assign server_handle = s_work.handle;
  assign server_offset = s_work.offset;
  assign server_length = s_work.length;

  assign asked.is_last = s_work.is_last;
  assign asked.sequence_number = s_work.sequence_number;
  assign asked.endpoint = s_work.endpoint;
  assign asked.line = s_work.line;
  assign asked.length = s_work.length;
  assign asked.parameter_word = s_work.parameter_word;

  packet_fifo #(
    .WIDTH(PART_BITS),
    .DEPTH(AHEAD)
  ) parts (
    .clk,
    .reset,
    .s_valid(s_valid && server_ready),
    .s_ready(has_place),
    .s_data(asked),
    .m_valid(has_part),
    .m_ready(is_done),
    .m_data(part),
    .level()
  );

  assign start_valid = has_part && !is_running;
  assign start_parameter = part.parameter_word;
  assign start_length = part.length;

  assign is_over = is_running && pages == part.length;
  assign is_read = page_status == shell_pkg::DONE;
  assign word_valid = is_running && !is_over && page_valid && is_read;
  assign word = page_data;
  assign word_page = pages;
  assign word_is_last = page_is_last;
  assign page_ready = is_running && !is_over && (word_ready || !is_read);

  assign out_valid = is_running && found_valid;
  assign found_ready = is_running && out_ready;
  assign out_endpoint = part.endpoint;
  assign out_line = part.line;
  assign out = found;

  // All that was found goes before the result.
  assign m_valid = is_over && result_valid && !found_valid;
  assign is_done = m_valid && m_ready;
  assign result_ready = is_over && m_ready && !found_valid;
  assign m_endpoint = part.endpoint;
  assign m_line = part.line;
  assign m_is_last = part.is_last;
  assign m_outcome.sequence_number = part.sequence_number;
  assign m_outcome.status = status;
  assign m_outcome.result = result;

  always_ff @(posedge clk) begin
    if (start_valid && start_ready) begin
      is_running <= 1'b1;
      pages <= '0;
      status <= shell_pkg::DONE;
    end
    if (page_valid && page_ready) begin
      if (page_is_last) pages <= pages + 1'b1;
      if (status == shell_pkg::DONE) status <= page_status;
    end
    if (is_done) is_running <= 1'b0;
    if (reset) is_running <= 1'b0;
  end

endmodule

`default_nettype wire
