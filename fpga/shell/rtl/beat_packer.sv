// Makes of a slot's words the packets that an HLS kernel takes: AXI-Stream beats of 512 bits, a
// packet a page, its tag (TID) the page's number in the part (fpga/hls/include/flashmesh/beat.hpp).
//
// A kernel is told before the first packet how many there are, and a slot knows only later which
// pages give no words. Those become empty packets in their places, whose tag no page has: a kernel
// that has rows for a page finds none for it, and what a kernel of texts or of pages makes of one is
// dropped (result_words).

`default_nettype none

module beat_packer (
  input  wire  logic                                  clk,
  input  wire  logic                                  reset,

  // The slot: a part starts, of so many pages; its words, in order.
  input  wire  logic                                  start,
  input  wire  logic [shell_pkg::OFFSET_BITS-1:0]     start_length,
  input  wire  logic                                  word_valid,
  output logic                                        word_ready,
  input  wire  logic [shell_pkg::DATA_BITS-1:0]       word,
  input  wire  logic [shell_pkg::OFFSET_BITS-1:0]     word_page,
  input  wire  logic                                  word_is_last,
  input  wire  logic                                  is_over,

  // The kernel.
  output logic                                        m_valid,
  input  wire  logic                                  m_ready,
  output logic [shell_pkg::BEAT_BITS-1:0]             m_data,   // the first word lowest
  output logic                                        m_keep,   // all bytes count, or none
  output logic [shell_pkg::KERNEL_TAG_BITS-1:0]       m_tag,
  output logic                                        m_is_last
);

  localparam int BEAT_BITS = shell_pkg::BEAT_BITS;
  localparam int DATA_BITS = shell_pkg::DATA_BITS;
  localparam int BEAT_WORDS = BEAT_BITS / DATA_BITS;
  localparam int OFFSET_BITS = shell_pkg::OFFSET_BITS;
  localparam int PLACE_BITS = $clog2(BEAT_WORDS);

  if (BEAT_WORDS * DATA_BITS != BEAT_BITS || BEAT_WORDS != 1 << PLACE_BITS || BEAT_WORDS < 2)
  begin : check_words
    $error("beat_packer: a beat is not a power of two of words");
  end
  if (shell_pkg::PAGE_WORDS % BEAT_WORDS != 0) begin : check_pages
    $error("beat_packer: a page ends within a beat");
  end
  if (OFFSET_BITS >= shell_pkg::KERNEL_TAG_BITS) begin : check_tags
    $error("beat_packer: NO_PAGE could be a page's number");
  end

  logic [OFFSET_BITS-1:0] length;
  logic [OFFSET_BITS-1:0] page;          // whose packet is made
  logic [PLACE_BITS-1:0]  place;         // of the next word in its beat

  wire has_place = !m_valid || m_ready;
  // Packets begin where beats do: nothing of a page is held when another is left out.
  wire is_left_out = (word_valid && word_page != page) || (is_over && page != length);
  assign word_ready = has_place && word_page == page;

  always_ff @(posedge clk) begin
    if (m_ready) m_valid <= 1'b0;
    if (has_place && is_left_out) begin
      m_valid <= 1'b1;
      m_data <= '0;
      m_keep <= 1'b0;
      m_tag <= shell_pkg::NO_PAGE;
      m_is_last <= 1'b1;
      page <= page + 1'b1;
    end
    if (word_valid && word_ready) begin
      m_data <= {word, m_data[BEAT_BITS-1:DATA_BITS]};
      place <= place + 1'b1;
      if (place == '1) begin
        m_valid <= 1'b1;
        m_keep <= 1'b1;
        m_tag <= shell_pkg::KERNEL_TAG_BITS'(page);
        m_is_last <= word_is_last;
        if (word_is_last) page <= page + 1'b1;
      end
    end
    if (start) begin
      length <= start_length;
      page <= '0;
      place <= '0;
    end
    if (reset) begin
      m_valid <= 1'b0;
      length <= '0;
      page <= '0;
      place <= '0;
    end
  end

endmodule

`default_nettype wire
