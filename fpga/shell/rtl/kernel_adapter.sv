// Joins a slot to the streaming form of an HLS kernel (fpga/hls, two forms): pages go in as packets
// of 512-bit beats, results come out as such and leave as words. The part's result is how many
// bytes of them there are, so that who reads its status knows when it has all.
//
// A start and an end are handshakes; the kernel's arguments beside the number of packets are where
// the part's parameter says.

`default_nettype none

module kernel_adapter (
  input  wire  logic                                  clk,
  input  wire  logic                                  reset,

  // The slot: see accelerator_slot.
  input  wire  logic                                  start_valid,
  output logic                                        start_ready,
  input  wire  logic [shell_pkg::OFFSET_BITS-1:0]     start_length,
  input  wire  logic                                  word_valid,
  output logic                                        word_ready,
  input  wire  logic [shell_pkg::DATA_BITS-1:0]       word,
  input  wire  logic [shell_pkg::OFFSET_BITS-1:0]     word_page,
  input  wire  logic                                  word_is_last,
  input  wire  logic                                  is_over,
  output logic                                        found_valid,
  input  wire  logic                                  found_ready,
  output shell_pkg::found_t                           found,
  output logic                                        result_valid,
  input  wire  logic                                  result_ready,
  output logic [shell_pkg::RESULT_BITS-1:0]           result,

  // The kernel. It starts, with as many packets to come as the part has pages, and ends.
  output logic                                        kernel_valid,
  input  wire  logic                                  kernel_ready,
  input  wire  logic                                  ended_valid,
  output logic                                        ended_ready,
  // Packets in.
  output logic                                        in_valid,
  input  wire  logic                                  in_ready,
  output logic [shell_pkg::BEAT_BITS-1:0]             in_data,
  output logic [shell_pkg::BEAT_BYTES-1:0]            in_keep,
  output logic [shell_pkg::KERNEL_TAG_BITS-1:0]       in_tag,
  output logic                                        in_is_last,
  // Packets out; when the kernel ends there are no more.
  input  wire  logic                                  out_valid,
  output logic                                        out_ready,
  input  wire  logic [shell_pkg::BEAT_BITS-1:0]       out_data,
  input  wire  logic [shell_pkg::BEAT_BYTES-1:0]      out_keep,
  input  wire  logic [shell_pkg::KERNEL_TAG_BITS-1:0] out_tag,
  input  wire  logic                                  out_is_last
);

  localparam int RESULT_BITS = shell_pkg::RESULT_BITS;

  logic is_kept;

  assign kernel_valid = start_valid;
  assign start_ready = kernel_ready;

  beat_packer packer (
    .clk,
    .reset,
    .start(start_valid && start_ready),
    .start_length,
    .word_valid,
    .word_ready,
    .word,
    .word_page,
    .word_is_last,
    .is_over,
    .m_valid(in_valid),
    .m_ready(in_ready),
    .m_data(in_data),
    .m_keep(is_kept),
    .m_tag(in_tag),
    .m_is_last(in_is_last)
  );

  assign in_keep = {shell_pkg::BEAT_BYTES{is_kept}};

  result_words words (
    .clk,
    .reset,
    .s_valid(out_valid),
    .s_ready(out_ready),
    .s_data(out_data),
    .s_keep(out_keep),
    .s_tag(out_tag),
    .s_is_last(out_is_last),
    .m_valid(found_valid),
    .m_ready(found_ready),
    .m(found)
  );

  assign result_valid = ended_valid;
  assign ended_ready = result_ready;

  always_ff @(posedge clk) begin
    if (found_valid && found_ready) result <= result + RESULT_BITS'(found.bytes);
    if (reset || (start_valid && start_ready)) result <= '0;
  end

endmodule

`default_nettype wire
