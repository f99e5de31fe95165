// A number is in just one place: never handed out yet, in the queue, or out; and there is one to be
// had unless all are out.

`default_nettype none

module proof #(
  parameter int NUMBERS = 4,
  parameter int BITS = $clog2(NUMBERS)
) (
  input wire logic            clk,
  input wire logic            s_valid,
  input wire logic [BITS-1:0] s_number,
  input wire logic            m_ready
);

  logic started = 1'b0;
  always_ff @(posedge clk) started <= 1'b1;
  wire reset = !started;

  logic            m_valid;
  logic [BITS-1:0] m_number;

  free_queue #(
    .NUMBERS(NUMBERS)
  ) numbers (
    .clk, .reset, .s_valid, .s_number, .m_valid, .m_ready, .m_number
  );

  logic [NUMBERS-1:0] is_out;

  always_ff @(posedge clk) begin
    if (s_valid) is_out[s_number] <= 1'b0;
    if (m_valid && m_ready) is_out[m_number] <= 1'b1;
    if (reset) is_out <= '0;
  end

  wire [BITS:0]             fresh;    // probe numbers.fresh
  wire [BITS:0]             level;    // probe numbers.queue.level
  wire [BITS:0]             taken;    // probe numbers.queue.taken
  wire [NUMBERS*BITS-1:0]   memory;   // probe numbers.queue.memory[*]

  logic [NUMBERS-1:0] is_queued;
  logic               is_twice;
  logic [BITS-1:0]    at;
  always_comb begin
    is_queued = '0;
    is_twice = 1'b0;
    at = '0;
    for (int i = 0; i < NUMBERS; i++) begin
      at = memory[BITS * ((taken + i) % NUMBERS) +: BITS];
      if (i < level) begin
        if (is_queued[at]) is_twice = 1'b1;
        is_queued[at] = 1'b1;
      end
    end
  end

  always_comb begin
    if (!started) assume (!s_valid);
    else begin
      if (s_valid) assume (is_out[s_number]);
      if (m_valid) a_free: assert (!is_out[m_number]);
      a_any: assert (m_valid == (is_out != '1));
      a_bounds: assert (fresh <= NUMBERS && level <= NUMBERS && !is_twice);
      for (int n = 0; n < NUMBERS; n++) begin
        assert (2'(n >= fresh) + 2'(is_queued[n]) + 2'(is_out[n]) == 1);
      end
    end
  end

endmodule

`default_nettype wire
