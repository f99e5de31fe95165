// Gives an accelerator the pages of a file as one stream, in order.
//
// BlueDBM, section 3.1.2: the accelerator asks with file handle, offset and length; the flash
// server has an address translation unit, and page buffers that put in order what the flash gives
// in any. Here it is one stream; who wants several has several, each a user of the splitter. Width,
// queue depth and the number of streams are those of its parameters, the package and its users.

`default_nettype none

module flash_server #(
  parameter int BUFFERS = 32,        // see completion_buffer
  parameter int LINE_BITS = 10       // see address_translation
) (
  input  wire  logic                                clk,
  input  wire  logic                                reset,

  // See address_translation.
  input  wire  logic                                load_segment,
  input  wire  logic [LINE_BITS-1:0]                load_line,
  input  wire  logic [shell_pkg::NUMBER_BITS-1:0]   load_number,
  input  wire  logic                                load_file,
  input  wire  logic [shell_pkg::HANDLE_BITS-1:0]   load_handle,
  input  wire  logic [LINE_BITS-1:0]                load_first,
  input  wire  logic [shell_pkg::OFFSET_BITS-1:0]   load_pages,

  // Requests.
  input  wire  logic                                s_valid,
  output logic                                      s_ready,
  input  wire  logic [shell_pkg::ENDPOINT_BITS-1:0] s_endpoint,   // who is responsible for it
  input  wire  logic [shell_pkg::HANDLE_BITS-1:0]   s_handle,
  input  wire  logic [shell_pkg::OFFSET_BITS-1:0]   s_offset,     // the first page
  input  wire  logic [shell_pkg::OFFSET_BITS-1:0]   s_length,     // pages

  // The splitter; see completion_buffer.
  output logic                                      command_valid,
  input  wire  logic                                command_ready,
  output shell_pkg::command_t                       command,
  output logic [shell_pkg::USER_TAG_BITS-1:0]       command_tag,
  input  wire  logic                                read_valid,
  input  wire  logic [shell_pkg::USER_TAG_BITS-1:0] read_tag,
  input  wire  logic [shell_pkg::DATA_BITS-1:0]     read_data,
  input  wire  logic                                ack_valid,
  input  wire  logic [shell_pkg::USER_TAG_BITS-1:0] ack_tag,
  input  wire  logic [shell_pkg::STATUS_BITS-1:0]   ack_status,

  // The pages; see completion_buffer.
  output logic                                      m_valid,
  input  wire  logic                                m_ready,
  output logic [shell_pkg::DATA_BITS-1:0]           m_data,
  output logic                                      m_is_last,
  output logic [shell_pkg::STATUS_BITS-1:0]         m_status
);

  // The request at hand: what is still to be translated, and what was asked and not yet answered.
  logic [shell_pkg::ENDPOINT_BITS-1:0] endpoint;
  logic [shell_pkg::HANDLE_BITS-1:0]   handle;
  logic [shell_pkg::OFFSET_BITS-1:0]   offset;
  logic [shell_pkg::OFFSET_BITS-1:0]   left;
  logic [1:0]                          asked;

  logic                                ask_ready;
  logic                                ask;
  logic                                page_valid;
  logic                                page_ready;
  logic [shell_pkg::PAGE_BITS-1:0]     page;
  logic                                is_out_of_bounds;
  shell_pkg::command_t                 wanted;

  assign s_ready = left == '0 && asked == '0;
  assign ask = left != '0 && ask_ready;

  assign wanted.operation = shell_pkg::READ;
  assign wanted.endpoint = endpoint;
  assign wanted.page = page;

  address_translation #(
    .LINE_BITS(LINE_BITS)
  ) translation (
    .clk,
    .reset,
    .load_segment,
    .load_line,
    .load_number,
    .load_file,
    .load_handle,
    .load_first,
    .load_pages,
    .s_valid(left != '0),
    .s_ready(ask_ready),
    .s_handle(handle),
    .s_offset(offset),
    .m_valid(page_valid),
    .m_ready(page_ready),
    .m_page(page),
    .m_is_out_of_bounds(is_out_of_bounds)
  );

  completion_buffer #(
    .BUFFERS(BUFFERS)
  ) pages (
    .clk,
    .reset,
    .s_valid(page_valid),
    .s_ready(page_ready),
    .s_command(wanted),
    .s_status(is_out_of_bounds ? shell_pkg::OUT_OF_BOUNDS : shell_pkg::DONE),
    .command_valid,
    .command_ready,
    .command,
    .command_tag,
    .read_valid,
    .read_tag,
    .read_data,
    .ack_valid,
    .ack_tag,
    .ack_status,
    .m_valid,
    .m_ready,
    .m_data,
    .m_is_last,
    .m_status
  );

  always_ff @(posedge clk) begin
    if (s_valid && s_ready) begin
      endpoint <= s_endpoint;
      handle <= s_handle;
      offset <= s_offset;
      left <= s_length;
    end
    if (ask) begin
      // No file is so long that it has the greatest offset: an overflow stays out of bounds.
      if (offset != '1) offset <= offset + 1'b1;
      left <= left - 1'b1;
    end
    asked <= asked + 2'(ask) - 2'(page_valid && page_ready);
    if (reset) begin
      left <= '0;
      asked <= '0;
    end
  end

endmodule

`default_nettype wire
