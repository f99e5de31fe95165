// Numbers that are free: tags, or buffers. One that was handed out is not handed out again before
// it was given back.
//
// First the numbers from 0 on, which need no place in memory; then those that were given back, in
// that order.

`default_nettype none

module free_queue #(
  parameter int NUMBERS = 128,               // 0 to NUMBERS - 1; a power of two
  parameter int BITS = $clog2(NUMBERS)
) (
  input  wire  logic            clk,
  input  wire  logic            reset,

  input  wire  logic            s_valid,     // given back: always taken
  input  wire  logic [BITS-1:0] s_number,

  output logic                  m_valid,
  input  wire  logic            m_ready,
  output logic [BITS-1:0]       m_number
);

  logic [BITS:0]   fresh;                    // numbers from here on were never handed out
  logic            is_fresh;
  logic            queued_valid;
  logic [BITS-1:0] queued;

  packet_fifo #(
    .WIDTH(BITS),
    .DEPTH(NUMBERS)
  ) queue (
    .clk,
    .reset,
    .s_valid,
    .s_ready(),
    .s_data(s_number),
    .m_valid(queued_valid),
    .m_ready(m_ready && !is_fresh),
    .m_data(queued),
    .level()
  );

  assign is_fresh = !fresh[BITS];
  assign m_valid = is_fresh || queued_valid;
  assign m_number = is_fresh ? fresh[BITS-1:0] : queued;

  always_ff @(posedge clk) begin
    if (is_fresh && m_ready) fresh <= fresh + 1'b1;
    if (reset) fresh <= '0;
  end

endmodule

`default_nettype wire
