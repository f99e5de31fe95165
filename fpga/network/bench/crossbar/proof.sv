// Words go from each input to each output without loss, doubles or change of order, and an output
// that can take a word takes one when there is one. Turns are fair: bench/round_robin.
//
// A word is the number of its input, and its own number among those from there to its output.

`default_nettype none

module proof #(
  parameter int INPUTS = 3,
  parameter int OUTPUTS = 3,
  parameter int OUTPUT_BITS = $clog2(OUTPUTS)
) (
  input wire logic                          clk,
  input wire logic [INPUTS-1:0]             s_valid,
  input wire logic [INPUTS*OUTPUT_BITS-1:0] s_output,
  input wire logic [OUTPUTS-1:0]            m_ready
);

  localparam int INPUT_BITS = $clog2(INPUTS);
  localparam int NUMBER_BITS = 2;
  localparam int WIDTH = INPUT_BITS + NUMBER_BITS;

  logic started = 1'b0;
  always_ff @(posedge clk) started <= 1'b1;
  wire reset = !started;

  logic [INPUTS-1:0]        s_ready;
  logic [INPUTS*WIDTH-1:0]  s_data;
  logic [OUTPUTS-1:0]       m_valid;
  logic [OUTPUTS*WIDTH-1:0] m_data;

  crossbar #(
    .INPUTS(INPUTS), .OUTPUTS(OUTPUTS), .WIDTH(WIDTH)
  ) crossbar (
    .clk, .reset, .s_valid, .s_ready, .s_output, .s_data, .m_valid, .m_ready, .m_data
  );

  // Of words from input i for output o.
  logic [INPUTS*OUTPUTS*NUMBER_BITS-1:0] in_counts;
  logic [INPUTS*OUTPUTS*NUMBER_BITS-1:0] out_counts;

  for (genvar i = 0; i < INPUTS; i++) begin : inputs
    wire [OUTPUT_BITS-1:0] to = s_output[OUTPUT_BITS*i +: OUTPUT_BITS];
    wire [NUMBER_BITS-1:0] number = in_counts[NUMBER_BITS * (OUTPUTS * i + to) +: NUMBER_BITS];
    assign s_data[WIDTH*i +: WIDTH] = {INPUT_BITS'(i), number};

    for (genvar o = 0; o < OUTPUTS; o++) begin : outputs
      localparam int AT = NUMBER_BITS * (OUTPUTS * i + o);
      wire [INPUT_BITS-1:0] from = m_data[WIDTH*o + NUMBER_BITS +: INPUT_BITS];
      wire is_held = m_valid[o] && from == i;

      always_ff @(posedge clk) begin
        if (s_valid[i] && s_ready[i] && to == o)
          in_counts[AT +: NUMBER_BITS] <= in_counts[AT +: NUMBER_BITS] + 1'b1;
        if (is_held && m_ready[o])
          out_counts[AT +: NUMBER_BITS] <= out_counts[AT +: NUMBER_BITS] + 1'b1;
        if (reset) begin
          in_counts[AT +: NUMBER_BITS] <= '0;
          out_counts[AT +: NUMBER_BITS] <= '0;
        end
      end

      always_comb begin
        if (started) begin
          // What went in and has not come out is in the output's register, and there alone.
          assert (NUMBER_BITS'(in_counts[AT +: NUMBER_BITS] - out_counts[AT +: NUMBER_BITS]) ==
                  is_held);
          if (is_held) assert (m_data[WIDTH*o +: NUMBER_BITS] == out_counts[AT +: NUMBER_BITS]);
        end
      end
    end
  end

  for (genvar o = 0; o < OUTPUTS; o++) begin : busy
    logic is_wanted, is_taken;
    always_comb begin
      is_wanted = 1'b0;
      is_taken = 1'b0;
      for (int i = 0; i < INPUTS; i++) begin
        if (s_valid[i] && s_output[OUTPUT_BITS*i +: OUTPUT_BITS] == o) begin
          is_wanted = 1'b1;
          if (s_ready[i]) is_taken = 1'b1;
        end
      end
      if (started) begin
        assert (!m_valid[o] || m_data[WIDTH*o + NUMBER_BITS +: INPUT_BITS] < INPUTS);
        assert (is_taken == (is_wanted && (!m_valid[o] || m_ready[o])));
      end
    end
  end

endmodule

`default_nettype wire
