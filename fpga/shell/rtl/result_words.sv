// Takes a kernel's results apart: AXI-Stream beats of 512 bits become the words in which they leave
// the slot, no more of them than have bytes that count, and one of a beat that has none.
//
// What a kernel made of a page that was not read is dropped: see beat_packer.

`default_nettype none

module result_words (
  input  wire  logic                                  clk,
  input  wire  logic                                  reset,

  // The kernel: AXI-Stream's TDATA, TKEEP (of a beat's bytes, the lowest count), TID, TLAST.
  input  wire  logic                                  s_valid,
  output logic                                        s_ready,
  input  wire  logic [shell_pkg::BEAT_BITS-1:0]       s_data,
  input  wire  logic [shell_pkg::BEAT_BYTES-1:0]      s_keep,
  input  wire  logic [shell_pkg::KERNEL_TAG_BITS-1:0] s_tag,
  input  wire  logic                                  s_is_last,

  output logic                                        m_valid,
  input  wire  logic                                  m_ready,
  output shell_pkg::found_t                           m
);

  localparam int WORD_BITS = shell_pkg::DATA_BITS;
  localparam int WORD_BYTES = WORD_BITS / 8;
  localparam int BEAT_WORDS = shell_pkg::BEAT_BITS / WORD_BITS;
  localparam int PLACE_BITS = $clog2(BEAT_WORDS);

  if (8 * WORD_BYTES * BEAT_WORDS != shell_pkg::BEAT_BITS || BEAT_WORDS != 1 << PLACE_BITS)
  begin : check_words
    $error("result_words: a beat is not a power of two of words");
  end
  if (WORD_BYTES >= 1 << shell_pkg::COUNT_BITS) begin : check_count
    $error("result_words: COUNT_BITS can not count a word's bytes");
  end

  logic [PLACE_BITS-1:0] place;            // of the next word in its beat

  wire [WORD_BYTES-1:0] kept = s_keep[WORD_BYTES*place +: WORD_BYTES];
  wire is_dropped = s_tag == shell_pkg::NO_PAGE;
  // Of the word behind, the lowest byte counts if any does.
  logic has_more;
  always_comb begin
    has_more = 1'b0;
    for (int i = 1; i < BEAT_WORDS; i++) begin
      if (place == PLACE_BITS'(i - 1)) has_more = s_keep[WORD_BYTES*i];
    end
  end

  assign m_valid = s_valid && !is_dropped;
  assign s_ready = is_dropped || (m_ready && !has_more);
  assign m.is_last = s_is_last && !has_more;
  assign m.tag = s_tag;
  assign m.data = s_data[WORD_BITS*place +: WORD_BITS];
  always_comb begin
    m.bytes = '0;
    for (int i = 0; i < WORD_BYTES; i++) begin
      m.bytes = m.bytes + shell_pkg::COUNT_BITS'(kept[i]);
    end
  end

  always_ff @(posedge clk) begin
    if (m_valid && m_ready) place <= has_more ? place + 1'b1 : '0;
    if (reset) place <= '0;
  end

endmodule

`default_nettype wire
