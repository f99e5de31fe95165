// The kernel gets as many packets as a part has pages, in order: of a page that was read its words,
// two a beat here, with its number and its end; of one that was not, an empty one that no page has
// the tag of. From any state that the invariant allows, with a slot and a kernel that go on, the
// next packet comes.
//
// A part has 0 to 3 pages of 4 words, of which any may give none; a word is its page and its place.
// The fields are narrow here (bench.toml).

`default_nettype none

module proof #(
  parameter int CLOCKS = 0           // `progress` holds after so many; 0: only safety
) (
  input wire logic       clk,
  input wire logic       any_start,
  input wire logic [1:0] any_length,
  input wire logic [3:0] any_is_read,
  input wire logic       any_skip,
  input wire logic       word_is_given,
  input wire logic       m_ready,
  input wire logic       any_end
);

  localparam int DATA_BITS = shell_pkg::DATA_BITS;
  localparam int OFFSET_BITS = shell_pkg::OFFSET_BITS;
  localparam int KERNEL_TAG_BITS = shell_pkg::KERNEL_TAG_BITS;

  function automatic [DATA_BITS-1:0] word_of(input logic [1:0] page, input logic [1:0] at);
    word_of = {page, at};
  endfunction

  logic started = CLOCKS != 0;
  always_ff @(posedge clk) started <= 1'b1;
  wire reset = !started;

  // The slot.
  logic       is_running;
  logic [1:0] length;
  logic [3:0] is_read;               // pages that give words
  logic [1:0] served;                // pages that have ended
  logic [1:0] served_word;           // of the next

  // The kernel.
  logic [1:0] out_page;              // packets that have come
  logic       out_beat;              // of the next

  wire start = any_start && !is_running;
  wire is_over = is_running && served == length;
  wire word_valid = is_running && !is_over && is_read[served] && word_is_given;
  wire word_is_last = served_word == '1;
  wire is_skipped = is_running && !is_over && !is_read[served] && any_skip;

  logic                       word_ready;
  logic                       m_valid;
  logic [2*DATA_BITS-1:0]     m_data;
  logic                       m_keep;
  logic [KERNEL_TAG_BITS-1:0] m_tag;
  logic                       m_is_last;

  beat_packer packer (
    .clk, .reset, .start, .start_length(OFFSET_BITS'(any_length)), .word_valid, .word_ready,
    .word(word_of(served, served_word)), .word_page(OFFSET_BITS'(served)), .word_is_last, .is_over,
    .m_valid, .m_ready, .m_data, .m_keep, .m_tag, .m_is_last
  );

  wire [OFFSET_BITS-1:0] packer_length;           // probe packer.length
  wire [OFFSET_BITS-1:0] page;                    // probe packer.page
  wire                   place;                   // probe packer.place

  always_ff @(posedge clk) begin
    if (word_valid && word_ready) served_word <= served_word + 1'b1;
    if (is_skipped || (word_valid && word_ready && word_is_last)) served <= served + 1'b1;
    if (m_valid && m_ready) begin
      out_beat <= !m_is_last;
      if (m_is_last) out_page <= out_page + 1'b1;
    end
    if (start) begin
      is_running <= 1'b1;
      length <= any_length;
      is_read <= any_is_read;
      served <= '0;
      served_word <= '0;
      out_page <= '0;
      out_beat <= 1'b0;
    end
    // A kernel ends, and with it a part, when it has had all packets.
    if (is_over && out_page == length && any_end) is_running <= 1'b0;
    if (reset) is_running <= 1'b0;
  end

  wire is_ending = m_valid && m_is_last;
  logic holds;
  always_comb begin
    holds = is_running || (!m_valid && place == '0);
    if (is_running) begin
      if (packer_length != OFFSET_BITS'(length) || served > length ||
          page != OFFSET_BITS'(out_page) + OFFSET_BITS'(is_ending) ||
          page > OFFSET_BITS'(served)) holds = 1'b0;
      // What lies between packets and words are pages that were not read.
      for (int i = 0; i < 3; i++) begin
        if (OFFSET_BITS'(i) >= page && i < served && is_read[i]) holds = 1'b0;
      end
      if (served_word != '0 && (page != OFFSET_BITS'(served) || is_over || !is_read[served]))
        holds = 1'b0;
      if (place != served_word[0] || (m_valid && place)) holds = 1'b0;
      if (place && m_data[DATA_BITS +: DATA_BITS] != word_of(served, served_word - 1'b1))
        holds = 1'b0;
      if (is_ending ? served_word != '0 : out_beat + 2'(m_valid) != 2'(served_word[1]))
        holds = 1'b0;
      if (m_valid && out_page >= length) holds = 1'b0;
      if (m_valid && is_read[out_page] &&
          (!m_keep || m_tag != KERNEL_TAG_BITS'(out_page) || m_is_last != out_beat ||
           m_data != {word_of(out_page, {out_beat, 1'b1}), word_of(out_page, {out_beat, 1'b0})}))
        holds = 1'b0;
      if (m_valid && !is_read[out_page] &&
          (m_keep || m_tag != shell_pkg::NO_PAGE || !m_is_last || out_beat)) holds = 1'b0;
    end
  end

  if (CLOCKS == 0) begin : safety
    always_comb begin
      if (started) begin
        a_invariant: assert (holds);
        if (m_valid) a_part: assert (is_running && out_page < length);
        if (m_valid && is_read[out_page]) a_page: assert (m_keep &&
          m_tag == KERNEL_TAG_BITS'(out_page) && m_is_last == out_beat &&
          m_data == {word_of(out_page, {out_beat, 1'b1}), word_of(out_page, {out_beat, 1'b0})});
        if (m_valid && !is_read[out_page]) a_left_out: assert (!m_keep && m_is_last && !out_beat &&
          m_tag == shell_pkg::NO_PAGE);
      end
    end
  end else begin : progress
    logic [7:0] age = '0;
    logic       is_out = 1'b0;
    always_ff @(posedge clk) begin
      if (age != '1) age <= age + 1'b1;
      if (m_valid && m_ready && m_is_last) is_out <= 1'b1;
    end
    always_comb begin
      assume (started && any_skip && word_is_given && m_ready);
      if (age == '0) assume (holds && is_running && out_page != length);
      if (age == CLOCKS) a_progress: assert (is_out);
    end
  end

endmodule

`default_nettype wire
