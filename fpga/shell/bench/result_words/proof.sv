// Of each beat come the words whose bytes count, in order, each with the beat's tag and with how
// many of its bytes count; of a beat without any, one; of what was made of a page that was not
// read, none. The last word of a packet's last beat ends the packet. A beat is taken with its last word.
//
// A beat has 4 words of 2 bytes here (bench.toml).

`default_nettype none

module proof (
  input wire logic                                  clk,
  input wire logic                                  any_valid,
  input wire logic [shell_pkg::BEAT_BITS-1:0]       any_data,
  input wire logic [3:0]                            any_count,
  input wire logic [shell_pkg::KERNEL_TAG_BITS-1:0] any_tag,
  input wire logic                                  any_is_last,
  input wire logic                                  m_ready
);

  localparam int BEAT_BITS = shell_pkg::BEAT_BITS;
  localparam int BEAT_BYTES = shell_pkg::BEAT_BYTES;
  localparam int DATA_BITS = shell_pkg::DATA_BITS;
  localparam int KERNEL_TAG_BITS = shell_pkg::KERNEL_TAG_BITS;

  logic started = 1'b0;
  always_ff @(posedge clk) started <= 1'b1;
  wire reset = !started;

  // A beat of a kernel: it stays until it is taken.
  logic                       s_valid;
  logic [BEAT_BITS-1:0]       s_data;
  logic [3:0]                 count;       // of its bytes
  logic [KERNEL_TAG_BITS-1:0] s_tag;
  logic                       s_is_last;
  logic [2:0]                 words;       // of it that have come

  logic                       s_ready;
  logic                       m_valid;
  shell_pkg::found_t          m;

  wire [BEAT_BYTES-1:0] s_keep = BEAT_BYTES'((9'd1 << count) - 9'd1);

  result_words taker (
    .clk, .reset, .s_valid, .s_ready, .s_data, .s_keep, .s_tag, .s_is_last, .m_valid, .m_ready, .m
  );

  wire [1:0] place;                        // probe taker.place

  always_ff @(posedge clk) begin
    if (m_valid && m_ready) words <= words + 1'b1;
    if (!s_valid || s_ready) begin
      s_valid <= any_valid;
      s_data <= any_data;
      count <= any_count > 4'd8 ? 4'd8 : any_count;
      s_tag <= any_tag;
      s_is_last <= any_is_last;
      words <= '0;
    end
    if (reset) begin
      s_valid <= 1'b0;
      count <= '0;
      words <= '0;
    end
  end

  // Words that must come of the beat, and bytes of it that count from this word on.
  wire       is_page = s_tag != shell_pkg::NO_PAGE;
  wire [2:0] wanted = !is_page ? 3'd0 : count == '0 ? 3'd1 : 3'((count + 4'd1) >> 1);
  wire [3:0] left = count - {words, 1'b0};

  always_comb begin
    if (started) begin
      a_invariant: assert (place == 2'(words) && (s_valid || words == '0) && count <= 4'd8 &&
                           (words == '0 || words < wanted));
      a_valid: assert (m_valid == (s_valid && words < wanted));
      if (m_valid) a_word: assert (m.tag == s_tag &&
        m.data == s_data[DATA_BITS*place +: DATA_BITS] && m.bytes == (left > 4'd2 ? 4'd2 : left) &&
        m.is_last == (s_is_last && words + 1'b1 == wanted));
      if (s_valid) a_taken: assert (s_ready == (!is_page || (m_ready && words + 1'b1 == wanted)));
    end
  end

endmodule

`default_nettype wire
