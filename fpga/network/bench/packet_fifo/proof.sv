// A FIFO that holds DEPTH words and gives them in order. Words are their own numbers.

`default_nettype none

module proof #(
  parameter int DEPTH = 4,
  parameter int NUMBER_BITS = $clog2(DEPTH) + 2
) (
  input wire logic clk,
  input wire logic s_valid,
  input wire logic m_ready
);

  typedef logic [NUMBER_BITS-1:0] number_t;

  logic started = 1'b0;
  always_ff @(posedge clk) started <= 1'b1;
  wire reset = !started;

  number_t in_count;
  number_t out_count;
  logic    s_ready;
  logic    m_valid;
  number_t m_data;
  logic [$clog2(DEPTH):0] level;

  packet_fifo #(
    .WIDTH(NUMBER_BITS), .DEPTH(DEPTH)
  ) fifo (
    .clk, .reset, .s_valid, .s_ready, .s_data(in_count), .m_valid, .m_ready, .m_data, .level
  );

  always_ff @(posedge clk) begin
    in_count <= in_count + number_t'(s_valid && s_ready);
    out_count <= out_count + number_t'(m_valid && m_ready);
    if (reset) begin
      in_count <= '0;
      out_count <= '0;
    end
  end

  wire [DEPTH*NUMBER_BITS-1:0] memory;  // probe fifo.memory[*]
  wire [$clog2(DEPTH):0] taken;         // probe fifo.taken

  logic is_right;
  always_comb begin
    is_right = taken % (2 * DEPTH) == out_count % (2 * DEPTH);
    for (int i = 0; i < DEPTH; i++) begin
      if (i < level && memory[NUMBER_BITS * ((taken + i) % DEPTH) +: NUMBER_BITS] !=
                       number_t'(out_count + i)) is_right = 1'b0;
    end
  end

  always_comb begin
    if (started) begin
      a_level: assert (number_t'(in_count - out_count) == level && level <= DEPTH);
      a_room: assert (s_ready == (level != DEPTH));
      a_word: assert (m_valid == (level != 0));
      if (m_valid) a_order: assert (m_data == out_count);
      a_invariant: assert (is_right);
    end
  end

endmodule

`default_nettype wire
